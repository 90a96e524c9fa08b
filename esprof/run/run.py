"""The Run: the recording of one job on all its ranks."""

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from enum import StrEnum
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
import numpy as np

from esprof.core import readable
from esprof.core.step_words import Unit
from esprof.core.text import printable
from esprof.core.types import Large, Number, Rank, Span, Time
from esprof.run.flight.log import FlightLog
from esprof.run.groups import MAX_RANKS, Group, RankField
from esprof.run.logs import JobEvent, Round
from esprof.run.overhead import Overhead
from esprof.run.probes import Probes
from esprof.run.raw.relaunch import Relaunch
from esprof.run.schema import ACCESSES, ALLOCATIONS, MEMORY, MODULES, SAMPLES, STACKS, STAGES, STEPS, Table, table

if TYPE_CHECKING:
    import pandas as pd

    from esprof.api import Analysis

SCHEMA = "esprof.run/1"


class WarningCode(StrEnum):
    """Codes of the warnings that code handles; all others are only shown."""

    RANK_MISSING = "rank-missing"
    """The ranks have no recording."""
    STILL_RUNNING = "still-running"
    """The job has not ended: the Run is incomplete."""
    TORCH_LACKS = "torch-lacks"
    """The job's torch version lacks data that other versions provide."""
    NO_STEPS = "no-steps"
    """The source marks no steps and its work does not repeat: its window counts as one step."""
    STEPS_BY_ANNOTATION = "steps-by-annotation"
    """Annotations of the job's loop begin the steps; their names say which kind of pass each step is."""
    STEPS_BY_BLOCK = "steps-by-block"
    """The source marks no steps: a block of repeated work counts as one."""
    TABLE_UNREADABLE = "table-unreadable"
    """A side table is broken; this is reported whenever the Run is opened."""


class RunWarning(msgspec.Struct, frozen=True):
    """A defect of the input and its consequence."""

    code: str
    message: str
    ranks: tuple[int, ...] = ()


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive steps that the profiler recorded; `first` and `last` are inclusive."""

    first: int
    last: int
    stacks: bool = False


class KnobReading(msgspec.Struct, frozen=True, kw_only=True):
    """Value of a knob (`esprof.recorder.knobs`) on a rank; None if the job has no such setting."""

    name: str
    value: str | None
    reason: str = ""
    """Why the knob could not be set."""


class ModelBytes(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of the tensors that a process holds from step to step, counted once where they share storage."""

    parameters: Large
    gradients: Large
    """Gradients at the end of a step."""
    buffers: Large
    """Buffers of modules, such as running means."""
    optimizer: Large
    """States of optimizers."""
    buckets: Large
    """Buckets of DistributedDataParallel, where gradients are not views into them."""
    parameter_sizes: tuple[Large, ...]
    """Distinct sizes of parameters."""


class RankMeta(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata of one rank. A value that the source lacks is None."""

    rank: RankField
    host: str | None = None
    device: str | None = None
    """Name of the accelerator, or of the CPU for a job without one."""
    accelerators: Number | None = None
    cpus: tuple[Number, ...] = ()
    """Numbers of the host's CPUs that the rank may run on; empty if unknown."""
    gpu_cpus: tuple[Number, ...] = ()
    """Those near its GPU (NUMA); empty if unknown."""
    cpu_quota: float | None = None
    """CPU quota of its control groups, in CPUs; None without a quota."""
    threads: Number | None = None
    """Intra-op CPU threads at the end of its first step."""
    paced_by: str | None = None
    """Event that ends its steps: `job` (`esprof.step`), `optimizer`, `loader` (the next batch of a DataLoader is requested)
    or `module` (the outermost module returns)."""
    pid: Large | None = None
    clock_offset_ns: Span | None = None
    """Offset of the clock to that of rank 0 in the middle of its readings, ns; the tables are corrected for it."""
    clock_drift_ppm: float | None = None
    """Drift of the clock relative to that of rank 0, µs per s; the tables are corrected for it."""
    clock_residual_ns: Span | None = None
    """Residual error of corrected times, ns."""
    windows: tuple[Window, ...] = ()
    events: Large = 0
    dropped_events: Large = 0
    dropped_steps: Large = 0
    """Steps whose rows were dropped to limit the size of the recording."""
    windows_lost: Number = 0
    """Windows that were started or requested, and lost."""
    ended: bool = True
    """Whether the rank's process ended normally, as far as known; False if it was killed or is running."""
    overhead: Overhead | None = None
    """Overhead of its profiled steps, relative to the plain steps near them; None if unknown."""
    peak_memory: Large | None = None
    peak_memory_of: str | None = None
    """Kind of `peak_memory`: `cuda` (peak of the allocator) or `rss` (resident set size of the process)."""
    memory_limit: Large | None = None
    """Upper bound of `peak_memory`: the memory of the device, or of the machine or control group, which is shared."""
    model: ModelBytes | None = None
    """None unless recorded with `--memory`."""
    knobs: tuple[KnobReading, ...] = ()
    """Knobs that `esprof verify` set or read."""


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """Gradient exchange of an elastic job's ESTs, measured by the job between two steps."""

    ests: tuple[tuple[int, ...], ...]
    """ESTs of each rank."""
    codec: str
    """`none` for uncompressed gradients."""
    samples_ns: tuple[Time, ...]
    """Duration of each repeat, ns, from the last rank's start to the last rank's end: encoding, communication and decoding.
    The ranks start with the same delays as in a step."""
    sent: Large
    """Bytes sent by the rank that sends most."""
    vnmse: float | None
    """Squared error of the mean of real gradients, relative to their square."""


class RunMeta(msgspec.Struct, frozen=True, kw_only=True):
    """Content of `run.json`."""

    schema: str = SCHEMA
    source: str = "esprof"
    """`esprof` for a recording by esprof, `kineto` for a trace of torch.profiler, `nsight-systems` and `rocprof` for their
    databases, `chakra` for Chakra execution traces, `xplane` for profiles of JAX, `table` for tables of operations,
    `flight-recorder` for dumps of PyTorch's Flight Recorder."""
    created_ns: Time | None = None
    command: tuple[str, ...] = ()
    relaunch: Relaunch | None = None
    """How `esprof record` started `command`; None for other sources."""
    exit_code: int | None = None
    versions: dict[str, str] = {}
    model_signature: str | None = None
    """Identifies the model; None if the job gives none."""
    world_size: Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)]
    ranks: tuple[RankMeta, ...]
    chosen_ranks: bool = False
    """Whether the source has chosen `ranks` from more, such as one of each tensor-parallel group: none is missing, and
    `world_size` is their number."""
    groups: tuple[Group, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    """Exchanges measured on request."""
    warnings: tuple[RunWarning, ...] = ()


class Run:
    """One recorded job: `meta`, and an event table and side tables for each rank, read on first use.

    Reading a broken table raises InputError.
    """

    def __init__(
        self,
        meta: RunMeta,
        read: Callable[[str, Rank], Table | None],
        path: Path | None = None,
        warnings: tuple[RunWarning, ...] = (),
        flight: Callable[[Rank], FlightLog | None] = lambda rank: None,
        probes: Probes | None = None,
        history: tuple[JobEvent, ...] = (),
        rounds: tuple[Round, ...] = (),
    ) -> None:
        """`read(table_name, rank)` returns a table (`events`, `steps`, …) and `flight(rank)` a flight log, or None.
        `history` has the events of an elastic job, `rounds` its tuning, oldest first."""
        self.meta = meta
        self.path = path
        self.sources: tuple[str, ...] = (str(path),) if path is not None else ()
        """Arguments of a command line that opens the Run again."""
        self.warnings = meta.warnings + warnings
        self.window: int | None = None
        """A step of the only window in this Run; None for a Run with all windows."""
        self.probes = probes
        self.history = history
        self.rounds = rounds
        self._read = read
        self._flight = flight
        self._tables: dict[tuple[str, Rank], Table | None] = {}
        self.keeps_one_rank = False
        """Whether only the tables of one rank at a time stay in memory, and all steps; others are read again on use."""

    @property
    def ranks(self) -> list[Rank]:
        """Ranks with events, ascending; may be fewer than `world_size`.

        If no rank has events, as in a flight recording without a window, all ranks with any data.
        """
        with_events = [rank.rank for rank in self.meta.ranks if rank.events or any(not w.stacks for w in rank.windows)]
        return with_events or [rank.rank for rank in self.meta.ranks]

    @property
    def world_size(self) -> int:
        return self.meta.world_size

    @property
    def unit(self) -> Unit:
        """What its steps are."""
        codes = {warning.code for warning in self.warnings}
        if WarningCode.NO_STEPS in codes:
            return "window"
        return "block" if WarningCode.STEPS_BY_BLOCK in codes else "step"

    @property
    def dumped(self) -> bool:
        """Whether the Run has only dumps of PyTorch's Flight Recorder: neither steps nor durations of operations."""
        return self.meta.source == "flight-recorder"

    @property
    def may_wait_inside(self) -> bool:
        """Whether operations may include waiting time, as PyTorch's calls do; operations of a table never do."""
        return self.meta.source != "table"

    @property
    def records_waits(self) -> bool:
        """Whether all waits for other ranks are recorded, so that a gap is a rank's own time; not known of a table."""
        return self.meta.source != "table"

    @property
    def is_one_window(self) -> bool:
        """Whether recorded steps follow each other in time whatever their numbers, as in a table of operations."""
        return self.meta.source == "table"

    @property
    def missing_ranks(self) -> tuple[Rank, ...]:
        """Ranks of the job that are not in `ranks`, ascending."""
        if self.meta.chosen_ranks:
            return ()
        return tuple(sorted(set(range(self.world_size)).difference(self.ranks)))

    def without(self, ranks: Collection[Rank], why: RunWarning) -> "Run":
        """Return this Run without the events of `ranks`; their other data stays."""
        metas = (
            msgspec.structs.replace(meta, events=0, windows=()) if meta.rank in ranks else meta
            for meta in self.meta.ranks
        )
        run = copy(self)
        run.meta = msgspec.structs.replace(self.meta, ranks=tuple(metas))
        run.warnings = (*self.warnings, why)
        return run

    def with_window(self, step: int, steps: Mapping[Rank, Table]) -> "Run":
        """Return this Run with the window of `step` alone; `steps` are the tables of its steps and all unprofiled ones."""
        run = copy(self)
        run.window = step
        run._tables = self._tables | {("steps", rank): rows for rank, rows in steps.items()}
        return run

    def rank(self, rank: Rank) -> RankMeta:
        return next(meta for meta in self.meta.ranks if meta.rank == rank)

    def _table(self, name: str, rank: Rank) -> Table | None:
        if (name, rank) in self._tables:
            return self._tables[name, rank]
        found = self._read(name, rank)
        if self.keeps_one_rank:  # A list, since another thread may read a table meanwhile.
            self._tables = {key: one for key, one in list(self._tables.items()) if key[1] == rank or key[0] == "steps"}
        self._tables[name, rank] = found
        return found

    def recorded(self, name: str, rank: Rank) -> Table | None:
        """The table `name` (`events`, `steps`, …) of `rank`; None if it was not recorded. Raises InputError if it is
        broken."""
        return self._table(name, rank)

    def has_flight(self, rank: Rank) -> bool:
        """Whether `rank` has a flight log. Raises InputError if it is broken."""
        return self._flight(rank) is not None

    def events(self, rank: Rank) -> Table:
        """Event table of `rank`, sorted by start; see `schema.EVENTS`."""
        events = self._table("events", rank)
        assert events is not None, f"rank {rank} is not in this run"
        return events

    def steps(self, rank: Rank) -> Table:
        """All steps of `rank`, profiled or not; see `schema.STEPS`. Without a step table, the steps of the event table."""
        steps = self._table("steps", rank)
        if not steps:
            steps = self._tables["steps", rank] = _steps_of_trace(self.events(rank))
        return steps

    def stages(self, rank: Rank) -> Table:
        """Data loading and marked stages of `rank`; may be empty. See `schema.STAGES`."""
        return self._table("stages", rank) or table({}, STAGES)

    def accesses(self, rank: Rank) -> Table:
        """Samples that the DataLoaders of `rank` read, in order; empty unless they were noted. See `schema.ACCESSES`."""
        return self._table("accesses", rank) or table({}, ACCESSES)

    def memory(self, rank: Rank) -> Table:
        """Memory samples of `rank`; may be empty. See `schema.MEMORY`."""
        return self._table("memory", rank) or table({}, MEMORY)

    def allocations(self, rank: Rank) -> Table:
        """Allocations of tensors in the timed windows of `rank`, by time; empty unless recorded. See
        `schema.ALLOCATIONS`."""
        return self._table("allocations", rank) or table({}, ALLOCATIONS)

    def modules(self, rank: Rank) -> Table:
        """Sizes of the modules that `rank` called; may be empty. See `schema.MODULES`."""
        return self._table("modules", rank) or table({}, MODULES)

    def flight(self, rank: Rank) -> FlightLog:
        """Flight log of `rank`; a rank without one counts as ended normally."""
        return self._flight(rank) or FlightLog(ended=True)

    def samples(self, rank: Rank) -> Table:
        """Stack samples of the training thread of `rank`, by time; may be empty. See `schema.SAMPLES`."""
        return self._table("samples", rank) or table({}, SAMPLES)

    def stacks(self, rank: Rank) -> Table:
        """Python frames in host gaps; empty without a window with stacks. See `schema.STACKS`."""
        return self._table("stacks", rank) or table({}, STACKS)

    def step_times(self) -> "pd.DataFrame":
        """All steps of all ranks, profiled or not, as a pandas table; see `schema.STEPS`. Times are microseconds."""
        return _api().step_times(self)

    def analyze(self, window: int | None = None) -> "Analysis":
        """Build and replay the graph once, and return its Analysis (`esprof.analyze`)."""
        return cast("Analysis", _api().analyze(self, window))

    def __repr__(self) -> str:
        lacks = f" of {self.world_size}" if self.missing_ranks else ""
        ranks = f"{len(self.ranks)}{lacks} rank{'' if self.world_size == 1 else 's'}"
        windows = {window for meta in self.meta.ranks for window in meta.windows if not window.stacks}
        # Of a window of 2³⁰ steps, as a corrupt file may have, only the first are named.
        steps = sorted({step for one in windows for step in range(one.first, min(one.last, one.first + 99_999) + 1)})
        described = (ranks, readable.numbered("step", steps) if steps else "", _job_of(self))
        return f"<Run {', '.join(filter(None, described))}>"

    def _repr_html_(self) -> str:
        html: str = _api().run_html(self)
        return html


def _api() -> Any:
    """Return the Python API, imported late because it is in the layer above."""
    return import_module("esprof.api")


def _job_of(run: Run) -> str:
    """Short name of the job: its script or module, or the file it was read from."""
    command = run.meta.command
    scripts: Sequence[str] = [Path(word).name for word in command if word.endswith(".py")]
    modules = [after for before, after in pairwise(command) if before == "-m"]
    return printable((scripts[:1] or modules[-1:] or [run.path.name if run.path else ""])[0], 60)


def _steps_of_trace(events: Table) -> Table:
    steps = events.where(np.flatnonzero(events.is_kind("step")))
    if not len(events):
        return table({}, STEPS)
    if not len(steps):
        first, last = events.ints("start_ns").min(), (events.ints("start_ns") + events.ints("dur_ns")).max()
        return table({"step": [0], "start_ns": [first], "dur_ns": [last - first], "phase": ["timed"]}, STEPS)
    columns = {name: steps.ints(name) for name in ("step", "start_ns", "dur_ns")} | {"phase": ["timed"] * len(steps)}
    return table(columns, STEPS)
