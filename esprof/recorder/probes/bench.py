"""Time repeated operations within a budget that all ranks share, and write each result at once."""

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
"""Run the timed operation once. All of its work is complete, or enqueued on the device, when this returns."""

_MIN_REPEATS, _MAX_REPEATS = 3, 30
"""Fewest and most repeats at one size."""
_WARM_UP_OF_SWEEP, _WARM_UP_OF_SIZE = 8, 2
"""Warm-up repeats: at the first size of a sweep, and at each size."""
_MAX_SHARE_OF_SWEEP, _MAX_SHARE_OF_ALL = 0.5, 0.15
"""Limits of the time for `_MIN_REPEATS` at one size: as a share of the sweep's remaining time, and, for a wanted size, of
the whole remaining budget."""

_BUFFERS_IN_FREE_MEMORY = 32
"""The largest buffer is the free memory divided by this."""


@dataclass(frozen=True)
class MeasuredSizes:
    """Description of a sweep: the fields of `esprof.run.probes.Sweep` without its points."""

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
        overlap = {"": "", "itself": ", two at once"}.get(self.beside, f" beside {self.beside}")
        threads = f" by {self.concurrency} threads" if self.concurrency > 1 else ""
        return f"{self.kind} {self.name}{overlap}{threads}"


class Bench:
    """The measurements of one rank. All ranks call its methods in the same order, with the same sizes and shares."""

    def __init__(self, path: str, rank: int, agreement: Agreement, budget_s: float, device: torch.device) -> None:
        self.rank = rank
        self.agreement = agreement
        self.device = device
        self._notes = NewFile(path)
        self._began = time.monotonic()
        self._budget_s = budget_s
        (taken,) = agreement.maxima(-_free_bytes(device) // _BUFFERS_IN_FREE_MEMORY)
        self.max_bytes = max(1 << 20, -taken)
        """Largest size that is measured, bytes: several buffers of this size fit into the memory of every rank's device."""
        self._stage_ends_s = budget_s
        self._ends_s = budget_s

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def mine(self, kind: str, name: str, unit: str, **more: Any) -> MeasuredSizes:
        """Description of a sweep that this rank measures alone."""
        return MeasuredSizes(kind, name, unit, (self.rank,), self.device.type, **more)

    def begin_stage(self, share: float) -> None:
        """Limit the time until the next call to `share` of the remaining budget."""
        self._stage_ends_s = self._ends_s = self._deadline_s(share, self._budget_s)

    def end_stage(self, name: str) -> None:
        self._write("stage", name=name)

    def use_share(self, share: float) -> None:
        """Limit the time until the next call to `share` of the stage's remaining time."""
        self._ends_s = self._deadline_s(share, self._stage_ends_s)

    def _deadline_s(self, share: float, end_s: float) -> float:
        (elapsed_ms,) = self.agreement.maxima(round(1e3 * self.elapsed_s))
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
        """Time `prepare(size)()` at each size in ascending order until the share of the budget is used up. The smallest
        size is always measured.

        `prepare` returns None if this rank does not take part. `wanted` sizes get a few repeats even if these take more than
        their share. With `in_step` all ranks start each repeat together. The prepared call does the operation `times` times;
        durations are divided by that. Results are written only if `noted()` is true. `before` runs before each repeat.
        """
        ascending = sorted(size for size in {*sizes, *wanted} if what.unit != "bytes" or size <= self.max_bytes)
        for index, size in enumerate(ascending):
            once, sizes_left = prepare(size), len(ascending) - index
            if index == 0:
                for _ in range(_WARM_UP_OF_SWEEP):
                    self._timed(once, before, in_step=in_step)
            min_repeats = _MIN_REPEATS if index == 0 else 0
            timed = self._repeated(once, before, sizes_left, min_repeats, wanted=size in wanted, in_step=in_step)
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
        """Write the durations of repeats; `more` are fields of `esprof.run.probes.Point`."""
        self._write("point", **asdict(what), size=size, samples_ns=list(samples_ns), cpu_ns=cpu_ns, **more)

    def left_out(self, what: str, reason: str, *, by_budget: bool = False) -> None:
        """Write what is not measured, and why. Only rank 0 writes it."""
        if self.rank == 0:
            self._write("left-out", what=what, reason=reason, by_budget=by_budget)

    def condition(self, **row: Any) -> None:
        self._write("condition", rank=self.rank, **row)

    def close(self, *, is_complete: bool) -> None:
        """Write the last row, and close the file. `is_complete` says that no stage is missing."""
        with suppress(OSError):
            self._write("end", took_s=round(self.elapsed_s, 3), whole=is_complete)
        self._notes.close()

    def repeats(self, worst_ns: int, sizes_left: int = 4, *, wanted: bool = False) -> int:
        """Number of repeats of a call that takes `worst_ns` on this rank, equal on all ranks; 0 without time for it.

        The remaining time is divided among `sizes_left` sizes, including this one.
        """
        worst, elapsed_ms = self.agreement.maxima(max(1, worst_ns), round(1e3 * self.elapsed_s))
        left_ns = 1e9 * (self._ends_s - elapsed_ms / 1e3)
        affordable = int(left_ns / sizes_left / worst)
        if affordable >= _MIN_REPEATS:
            return min(affordable, _MAX_REPEATS)
        budget_left_ns = 1e9 * (self._budget_s - elapsed_ms / 1e3)
        limit_ns = max(_MAX_SHARE_OF_SWEEP * left_ns, _MAX_SHARE_OF_ALL * budget_left_ns if wanted else 0)
        return _MIN_REPEATS if _MIN_REPEATS * worst <= limit_ns else 0

    def _repeated(
        self,
        once: Once | None,
        before: Callable[[], object],
        sizes_left: int,
        min_repeats: int,
        *,
        wanted: bool,
        in_step: bool,
    ) -> list[tuple[int, int]] | None:
        """(duration, CPU time) of each repeat, ns; empty if this rank does not take part, None without time for it."""
        first = [self._timed(once, before, in_step=in_step)[0] for _ in range(_WARM_UP_OF_SIZE)]
        count = max(min_repeats, self.repeats(first[-1], sizes_left, wanted=wanted))
        timed = [self._timed(once, before, in_step=in_step) for _ in range(count)]
        return (timed if once is not None else []) if count else None

    def _timed(self, once: Once | None, before: Callable[[], object], *, in_step: bool) -> tuple[int, int]:
        """(duration, CPU time) of one call, ns."""
        before()
        if in_step:
            self.agreement.barrier()
        if once is None:
            return 0, 0
        self.synchronize()
        cpu, began = time.process_time_ns(), time.perf_counter_ns()
        once()
        self.synchronize()
        return time.perf_counter_ns() - began, time.process_time_ns() - cpu

    def timed(self, once: Once) -> tuple[int, int]:
        """(duration, CPU time) of one call, ns. All ranks start it together."""
        return self._timed(once, lambda: None, in_step=True)

    def synchronize(self) -> None:
        """Wait until the device has completed all work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _write(self, row_kind: str, /, **row: Any) -> None:
        self._notes.append(json.dumps({"kind": row_kind, "is": row}, separators=(",", ":")).encode() + b"\n")


def _free_bytes(device: torch.device) -> int:
    """Free memory of the device, bytes."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    with open("/proc/meminfo") as file:
        found = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in file)}
    return 1024 * found.get("MemAvailable", found["MemFree"])
