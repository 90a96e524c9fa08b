"""The Run: what was recorded of one job, on all its ranks."""

from collections.abc import Callable, Collection, Sequence
from enum import StrEnum
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np

from esprof.core import readable
from esprof.core.text import printable
from esprof.core.types import Bytes, Ns, Rank
from esprof.run.flight.log import FlightLog
from esprof.run.groups import MAX_RANKS, Group, RankField
from esprof.run.logs import JobEvent, Round
from esprof.run.overhead import Overhead
from esprof.run.probes import Probes
from esprof.run.schema import MEMORY, SAMPLES, STACKS, STAGES, STEPS, Table, table

if TYPE_CHECKING:
    import pandas as pd

    from esprof.api import Analysis

SCHEMA = "esprof.run/1"


class WarningCode(StrEnum):
    """Codes of the warnings that code acts upon; all others are only shown."""

    RANK_MISSING = "rank-missing"
    """Nothing was recorded of the ranks."""
    STILL_RUNNING = "still-running"
    """The job has not ended: the Run is what was recorded up to now."""
    TORCH_LACKS = "torch-lacks"
    """The torch that the job ran with cannot tell something that others can."""
    TABLE_UNREADABLE = "table-unreadable"
    """A side table is broken, which is told anew whenever the Run is opened."""


class RunWarning(msgspec.Struct, frozen=True):
    """Something the input lacks, and what that costs the answer."""

    code: str
    message: str
    ranks: tuple[int, ...] = ()


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of steps that the profiler recorded. `first` and `last` are inclusive step numbers."""

    first: int
    last: int
    stacks: bool = False


class KnobReading(msgspec.Struct, frozen=True, kw_only=True):
    """How a knob stood on a rank (`esprof.recorder.knobs`): its value, or None where it has nothing that could be set so."""

    name: str
    value: str | None
    reason: str = ""
    """Why it stood so, where it could not be set."""


class RankMeta(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one rank. A value that the source lacks is None."""

    rank: RankField
    host: str | None = None
    device: str | None = None
    """Name of the accelerator, or of the CPU where the job runs on it."""
    accelerators: int | None = None
    cpus: tuple[int, ...] = ()
    """Numbers of the CPUs of its host that the rank may run on; empty where that is not known."""
    cpu_quota: float | None = None
    """How many CPUs its control groups let it use at a time, on average; None without a quota."""
    threads: int | None = None
    """Threads that each of its operations may use on the CPU, when its first step ended."""
    paced_by: str | None = None
    """What ended its steps: `job` (`esprof.step`), `optimizer`, `loader` (a DataLoader was asked for its next batch) or
    `module` (one returned that no other had called)."""
    pid: int | None = None
    clock_offset_ns: Ns | None = None
    """By how many ns the clock was ahead of rank 0's in the middle of its readings; the tables are corrected for it."""
    clock_drift_ppm: float | None = None
    """Microseconds that the clock gained per second on rank 0's; the tables are corrected for it."""
    clock_residual_ns: Ns | None = None
    """By how many ns times on rank 0's clock may still be wrong."""
    windows: tuple[Window, ...] = ()
    events: int = 0
    dropped_events: int = 0
    dropped_steps: int = 0
    """Steps whose rows were dropped to keep within the bounds of the recording."""
    windows_lost: int = 0
    """Windows that were begun or asked for and could not be kept."""
    ended: bool = True
    """Whether the rank's process ended in good order, as far as is known: not where it was killed or still runs."""
    overhead: Overhead | None = None
    """What its timed steps cost, against the plain steps beside them; None where that cannot be told."""
    peak_memory: Bytes | None = None
    peak_memory_of: str | None = None
    """What `peak_memory` measures: `cuda` (allocator peak) or `rss` (resident set of the process)."""
    memory_limit: Bytes | None = None
    """Bytes that `peak_memory` could have reached: of the device, or of the machine or control group, which other processes
    share."""
    knobs: tuple[KnobReading, ...] = ()
    """Those that `esprof verify` has set or read back."""


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """How the gradients of an elastic job's ESTs come to their mean, measured by the job itself between two steps."""

    ests: tuple[tuple[int, ...], ...]
    """Those of each rank."""
    codec: str
    """`none` for gradients as they are."""
    samples_ns: tuple[Ns, ...]
    """Of each repeat, from when the last rank comes to when the last one has the mean: encoding, transfers, and decoding of
    the gradients. Ranks come one after the other, as their ESTs take them in a step."""
    sent: Bytes
    """What the rank that sends most sends to others."""
    vnmse: float | None
    """What the mean of real gradients loses, as squared error relative to their square."""


class RunMeta(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `run.json`."""

    schema: str = SCHEMA
    source: str = "esprof"
    """`esprof` for our own recording, `kineto` for a trace of torch.profiler, `flight-recorder` for dumps of PyTorch's
    Flight Recorder."""
    created_ns: Ns | None = None
    command: tuple[str, ...] = ()
    exit_code: int | None = None
    versions: dict[str, str] = {}
    model_signature: str | None = None
    """What tells the model from others; None where the job did not say."""
    world_size: Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)]
    ranks: tuple[RankMeta, ...]
    groups: tuple[Group, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    """Those that somebody has asked for."""
    warnings: tuple[RunWarning, ...] = ()


class Run:
    """One recorded job: `meta`, and per rank an event table and side tables, read when first asked for.

    Asking raises InputError where a table turns out to be broken.
    """

    def __init__(
        self,
        meta: RunMeta,
        read: Callable[[str, Rank], Table | None],
        path: Path | None = None,
        warnings: tuple[RunWarning, ...] = (),
        flight: Callable[[Rank], FlightLog | None] = lambda rank: None,
        window: int | None = None,
        sources: tuple[str, ...] = (),
        probes: Probes | None = None,
        history: tuple[JobEvent, ...] = (),
        rounds: tuple[Round, ...] = (),
    ) -> None:
        """`read(table_name, rank)` returns a table (`events`, `steps`, …), and `flight(rank)` what the flight recorder
        left; None where there is none. `window` is a step of the only window that this Run holds; None for all of a run.
        `sources` are what a command line names to open the Run again; the path alone, where none are given. `probes` is
        what was measured for the job; None where nothing was. `history` is what happened to an elastic job, and `rounds`
        how it was tuned, oldest first."""
        self.meta = meta
        self.path = path
        self.sources = sources or ((str(path),) if path is not None else ())
        self.warnings = meta.warnings + warnings
        self.window = window
        self.probes = probes
        self.history = history
        self.rounds = rounds
        self._read = read
        self._flight = flight
        self._tables: dict[tuple[str, Rank], Table | None] = {}

    @property
    def ranks(self) -> list[Rank]:
        """The ranks whose events are here, ascending; may be fewer than `world_size`.

        Where no rank has events, as in a flight recording without a window, all ranks that left anything.
        """
        with_events = [rank.rank for rank in self.meta.ranks if rank.events or any(not w.stacks for w in rank.windows)]
        return with_events or [rank.rank for rank in self.meta.ranks]

    @property
    def world_size(self) -> int:
        return self.meta.world_size

    @property
    def dumped(self) -> bool:
        """Whether all that is known are dumps of PyTorch's Flight Recorder: neither steps nor times of operations."""
        return self.meta.source == "flight-recorder"

    @property
    def may_wait_inside(self) -> bool:
        """Whether an operation may wait for others inside, as PyTorch's calls do. Those of a table are the work alone."""
        return self.meta.source != "table"

    @property
    def missing_ranks(self) -> tuple[Rank, ...]:
        """The ranks of the job that are not among `ranks`, ascending."""
        return tuple(sorted(set(range(self.world_size)).difference(self.ranks)))

    def without(self, ranks: Collection[Rank], why: RunWarning) -> "Run":
        """This run as if no events of `ranks` had been recorded; what is known of them beside the events stays."""
        metas = (
            msgspec.structs.replace(meta, events=0, windows=()) if meta.rank in ranks else meta
            for meta in self.meta.ranks
        )
        return Run(
            msgspec.structs.replace(self.meta, ranks=tuple(metas)),
            self._table,
            self.path,
            (*self.warnings[len(self.meta.warnings) :], why),
            self._flight,
            self.window,
            self.sources,
            self.probes,
            self.history,
            self.rounds,
        )

    def rank(self, rank: Rank) -> RankMeta:
        return next(meta for meta in self.meta.ranks if meta.rank == rank)

    def _table(self, name: str, rank: Rank) -> Table | None:
        if (name, rank) not in self._tables:
            self._tables[name, rank] = self._read(name, rank)
        return self._tables[name, rank]

    def events(self, rank: Rank) -> Table:
        """The event table of `rank`, sorted by start; see `schema.EVENTS`."""
        events = self._table("events", rank)
        assert events is not None, f"rank {rank} is not in this run"
        return events

    def steps(self, rank: Rank) -> Table:
        """Every step of `rank`, recorded or not; see `schema.STEPS`. Without a step table, the steps of the event table."""
        return self._table("steps", rank) or _steps_of_trace(self.events(rank))

    def stages(self, rank: Rank) -> Table:
        """The DataLoader's work for `rank`; empty where it was not probed. See `schema.STAGES`."""
        return self._table("stages", rank) or table({}, STAGES)

    def memory(self, rank: Rank) -> Table:
        """Samples of the memory of `rank`; empty where none were taken. See `schema.MEMORY`."""
        return self._table("memory", rank) or table({}, MEMORY)

    def flight(self, rank: Rank) -> FlightLog:
        """What the flight recorder of `rank` left; a rank without one is taken to have ended in good order."""
        return self._flight(rank) or FlightLog(ended=True)

    def samples(self, rank: Rank) -> Table:
        """Where the training thread of `rank` was, by time; empty where it was not looked at. See `schema.SAMPLES`."""
        return self._table("samples", rank) or table({}, SAMPLES)

    def stacks(self, rank: Rank) -> Table:
        """Python frames behind host gaps; empty where no window with stacks was recorded. See `schema.STACKS`."""
        return self._table("stacks", rank) or table({}, STACKS)

    def step_times(self) -> "pd.DataFrame":
        """Every step of every rank as a pandas table, recorded or not; see `schema.STEPS`. Times are microseconds."""
        return _api().step_times(self)

    def analyze(self, window: int | None = None) -> "Analysis":
        """Build the graph and replay it, once for all that is asked of the Analysis (`esprof.analyze`)."""
        analysis: Analysis = _api().analyze(self, window)
        return analysis

    def __repr__(self) -> str:
        lacks = f" of {self.world_size}" if self.missing_ranks else ""
        ranks = f"{len(self.ranks)}{lacks} rank{'' if self.world_size == 1 else 's'}"
        windows = {window for meta in self.meta.ranks for window in meta.windows if not window.stacks}
        steps = sorted({step for window in windows for step in range(window.first, window.last + 1)})
        parts = (ranks, readable.numbered("step", steps) if steps else "", _job_of(self))
        return f"<Run {', '.join(filter(None, parts))}>"

    def _repr_html_(self) -> str:
        html: str = _api().run_html(self)
        return html


def _api() -> Any:
    """The Python API, of the layer above all others: found by name, and not before somebody asks."""
    return import_module("esprof.api")


def _job_of(run: Run) -> str:
    """What the run is of, in a word: its script or module, or where it was read from."""
    command = run.meta.command
    scripts: Sequence[str] = [Path(word).name for word in command if word.endswith(".py")]
    modules = [after for before, after in pairwise(command) if before == "-m"]
    source = run.path.name if run.path else ""
    return printable((scripts[:1] or modules[-1:] or [source])[0], 60)


def _steps_of_trace(events: Table) -> Table:
    steps = events.where(np.flatnonzero(events.is_kind("step")))
    if not len(events):
        return table({}, STEPS)
    if not len(steps):
        first, last = events.ints("start_ns").min(), (events.ints("start_ns") + events.ints("dur_ns")).max()
        return table({"step": [0], "start_ns": [first], "dur_ns": [last - first], "phase": ["timed"]}, STEPS)
    columns = {"step": steps.ints("step"), "start_ns": steps.ints("start_ns"), "dur_ns": steps.ints("dur_ns")}
    return table(columns | {"phase": ["timed"] * len(steps)}, STEPS)
