"""Where things are timed: repeats within a budget that all ranks share, each noted as soon as it is known."""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ...run.raw.new_files import NewFile
from .agreement import Agreement

Once = Callable[[], object]
"""Does the thing that is timed, from begin to end: nothing of it goes on when this returns."""

_MIN_REPEATS, _MAX_REPEATS = 3, 30
"""Repeats at one size."""
_WARM_UP_OF_SWEEP, _WARM_UP_OF_SIZE = 8, 2
"""Repeats that do not count: at the first size of a sweep, and at each."""
_MAX_SHARE_OF_SWEEP, _MAX_SHARE_OF_ALL = 0.5, 0.15
"""Which part of the time that is left to a sweep the fewest repeats of one size may take; which part of all that is left
they may take where the size is wanted."""


_PARTS_OF_FREE_MEMORY = 32


@dataclass(frozen=True)
class MeasuredSizes:
    """What is measured at several sizes: the fields of `esprof.run.probes.Sweep` but the points."""

    kind: str
    name: str
    unit: str
    ranks: tuple[int, ...]
    device: str
    backend: str | None = None
    beside: str = ""
    concurrency: int = 1

    @property
    def title(self) -> str:
        others = {"": "", "itself": ", two at once"}.get(self.beside, f" beside {self.beside}")
        threads = f" by {self.concurrency} threads" if self.concurrency > 1 else ""
        return f"{self.kind} {self.name}{others}{threads}"


class Bench:
    """One rank's measurements. All ranks call its methods in the same order, with the same sizes and shares."""

    def __init__(self, path: str, rank: int, agreement: Agreement, budget_s: float, device: torch.device) -> None:
        self.rank = rank
        self.agreement = agreement
        self.device = device
        self._notes = NewFile(path)
        self._began = time.monotonic()
        self._budget_s = budget_s
        (taken,) = agreement.most(-_free_bytes(device) // _PARTS_OF_FREE_MEMORY)
        self.max_bytes = max(1 << 20, -taken)
        """Largest size in bytes that is measured: some buffers of that size fit into the memory of every rank's device."""
        self._stage_ends_s = budget_s
        self._ends_s = budget_s

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def mine(self, kind: str, name: str, unit: str, **more: Any) -> MeasuredSizes:
        """What this rank measures by itself."""
        return MeasuredSizes(kind, name, unit, (self.rank,), self.device.type, **more)

    def begin_stage(self, share: float) -> None:
        """From now on `share` of the time that is left may be used, until the next call."""
        self._stage_ends_s = self._ends_s = self._after(share, self._budget_s)

    def end_stage(self, name: str) -> None:
        self._write("stage", name=name)

    def take(self, share: float) -> None:
        """From now on `share` of the time that is left to the stage may be used, until the next call."""
        self._ends_s = self._after(share, self._stage_ends_s)

    def _after(self, share: float, end_s: float) -> float:
        (elapsed_ms,) = self.agreement.most(round(1e3 * self.elapsed_s))
        return elapsed_ms / 1e3 + share * max(0.0, end_s - elapsed_ms / 1e3)

    def sweep(
        self,
        what: MeasuredSizes,
        sizes: Iterable[int],
        prepare: Callable[[int], Once | None],
        *,
        wanted: Sequence[int] = (),
        in_step: bool = False,
        times: int = 1,
        noted: Callable[[], bool] = lambda: True,
        before: Callable[[], object] = lambda: None,
    ) -> None:
        """Time `prepare(size)()` at each size, from small to large, until the share of the budget is used up; at the
        smallest in any case.

        `prepare` returns None where this rank has no part in it. Sizes that are `wanted` get a few repeats even where they
        take more than their part of the share. `in_step`: all ranks begin each repeat together. What is prepared does the
        thing so many `times`; where `noted` does not hold, nothing is noted. `before` each repeat something is made ready.
        """
        ascending = sorted(size for size in {*sizes, *wanted} if what.unit != "bytes" or size <= self.max_bytes)
        for place, size in enumerate(ascending):
            once, to_come = prepare(size), len(ascending) - place
            if place == 0:
                for _ in range(_WARM_UP_OF_SWEEP):
                    self._timed(once, before, in_step=in_step)
            least = _MIN_REPEATS if place == 0 else 0
            timed = self._repeated(once, before, to_come, least, wanted=size in wanted, in_step=in_step)
            if timed and noted():
                samples, cpu = zip(*timed, strict=True)
                self.note(what, size, [took // times for took in samples], sum(cpu) // len(cpu) // times)
            if timed is None:
                why = "it would take more than its share of the time"
                self.left_out(f"{what.title} from {size} {what.unit} on", why, by_budget=True)
                return

    def note(
        self,
        what: MeasuredSizes,
        size: int,
        samples_ns: Sequence[int],
        cpu_ns: int | None = None,
        **more: float | None,
    ) -> None:
        """Note repeats that were timed elsewhere; `more` are fields of `esprof.run.probes.Point`."""
        self._write("point", **asdict(what), size=size, samples_ns=list(samples_ns), cpu_ns=cpu_ns, **more)

    def left_out(self, what: str, reason: str, *, by_budget: bool = False) -> None:
        """Note what is not measured, and why: on rank 0, for all."""
        if self.rank == 0:
            self._write("left-out", what=what, reason=reason, by_budget=by_budget)

    def condition(self, **row: Any) -> None:
        self._write("condition", rank=self.rank, **row)

    def close(self, *, whole: bool) -> None:
        with suppress(OSError):
            self._write("end", took_s=round(self.elapsed_s, 3), whole=whole)
        self._notes.close()

    def repeats(self, worst_ns: int, to_come: int = 4, *, wanted: bool = False) -> int:
        """How often all ranks may repeat what takes the slowest of them so long: 0 where there is no time for it.

        `to_come` sizes, this one among them, share what is left.
        """
        worst, elapsed_ms = self.agreement.most(max(1, worst_ns), round(1e3 * self.elapsed_s))
        left_ns = 1e9 * (self._ends_s - elapsed_ms / 1e3)
        affordable = int(left_ns / to_come / worst)
        if affordable >= _MIN_REPEATS:
            return min(affordable, _MAX_REPEATS)
        everything_ns = 1e9 * (self._budget_s - elapsed_ms / 1e3)
        most_ns = max(_MAX_SHARE_OF_SWEEP * left_ns, _MAX_SHARE_OF_ALL * everything_ns if wanted else 0)
        return _MIN_REPEATS if _MIN_REPEATS * worst <= most_ns else 0

    def _repeated(
        self, once: Once | None, before: Callable[[], object], to_come: int, least: int, *, wanted: bool, in_step: bool
    ) -> list[tuple[int, int]] | None:
        """ns of each repeat, and of CPU time; empty where this rank has no part in it, None where there is no time."""
        first = [self._timed(once, before, in_step=in_step)[0] for _ in range(_WARM_UP_OF_SIZE)]
        count = max(least, self.repeats(first[-1], to_come, wanted=wanted))
        timed = [self._timed(once, before, in_step=in_step) for _ in range(count)]
        return (timed if once is not None else []) if count else None

    def _timed(self, once: Once | None, before: Callable[[], object], *, in_step: bool) -> tuple[int, int]:
        """ns that it took, and ns of CPU time."""
        before()
        if in_step:
            self.agreement.meet()
        if once is None:
            return 0, 0
        self.settle()
        cpu, began = time.process_time_ns(), time.perf_counter_ns()
        once()
        self.settle()
        return time.perf_counter_ns() - began, time.process_time_ns() - cpu

    def settle(self) -> None:
        """Wait until the device has done all that it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _write(self, row_kind: str, /, **row: Any) -> None:
        self._notes.append(json.dumps({"kind": row_kind, "is": row}, separators=(",", ":")).encode() + b"\n")


def _free_bytes(device: torch.device) -> int:
    """Memory of the device that nobody uses, bytes."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    with open("/proc/meminfo") as file:
        found = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in file)}
    return 1024 * found.get("MemAvailable", found["MemFree"])
