"""The calls of a rank in its steady-state steps, the GPU work that each launched, and the operations of both."""

from collections.abc import Container
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from esprof.analyzers.ops.calls import LaunchedWork, RankCalls, SteadyTime, calls_of, launched_by
from esprof.analyzers.ops.nesting import nearest
from esprof.analyzers.views.kernel_names import MULTIPLIES
from esprof.analyzers.views.operation_counts import CONVOLUTION, COUNTED, Dims, convolution, dims_of
from esprof.core.types import Rank
from esprof.replay.steps import RecordedSteps
from esprof.run.schema import Table

_MAX_CALLS_TO_OUTPUT = 60
"""Most calls after a convolution among which the one that takes its output is sought."""


@dataclass(frozen=True)
class GpuCalls:
    """Calls and GPU work of one rank. Calls are numbered as in `calls`; arrays by call or by piece of work say so."""

    events: Table
    calls: RankCalls
    work: LaunchedWork
    steps: int
    """Number of steady-state steps."""
    span_ns: int
    """Their duration together."""

    @cached_property
    def name(self) -> list[str]:
        """Name of each call."""
        texts = [key.name for key in self.calls.keys]
        return [texts[key] for key in self.calls.key.tolist()]

    @cached_property
    def start_ns(self) -> np.ndarray:
        """Start of each call, ns."""
        start: np.ndarray = self.events.ints("start_ns")[self.calls.row]
        return start

    @cached_property
    def end_ns(self) -> np.ndarray:
        """End of each call, ns."""
        end: np.ndarray = self.start_ns + self.events.ints("dur_ns")[self.calls.row]
        return end

    @cached_property
    def tid(self) -> np.ndarray:
        """Thread of each call."""
        tid: np.ndarray = self.events.ints("tid")[self.calls.row]
        return tid

    @cached_property
    def dims(self) -> list[Dims]:
        """Shapes of the inputs of each call; empty where they are unknown."""
        codes, texts = self.events.codes("shapes")
        of_text = [*map(dims_of, texts), []]
        return [of_text[code] for code in codes[self.calls.row].tolist()]

    @cached_property
    def kernel(self) -> tuple[np.ndarray, list[str]]:
        """(index of the name of each piece of work, names)."""
        codes, texts = self.events.codes("name")
        return codes[self.work.row], texts

    @cached_property
    def multiplies(self) -> np.ndarray:
        """Mask of the work whose kernels multiply, convolve or compute attention, by their names."""
        mask: np.ndarray = self.events.matches("name", MULTIPLIES.search)[self.work.row] & self.is_kernel
        return mask

    @cached_property
    def is_kernel(self) -> np.ndarray:
        """Mask of the work that computes: neither copies, fills nor collectives."""
        mask: np.ndarray = self.events.is_kind("kernel")[self.work.row]
        return mask

    def are(self, names: Container[str]) -> np.ndarray:
        """Mask of the calls with one of these names."""
        return self.calls.of(lambda key: key.name in names)

    def within(self, wanted: np.ndarray) -> np.ndarray:
        """For each piece of work, the innermost call of the mask `wanted` in which it was launched; -1 for none."""
        by = self.work.by
        if not len(self.calls.row):
            return np.full(len(by), -1, np.int64)
        found: np.ndarray = np.where(by >= 0, nearest(self.calls.enclosing, wanted)[by], -1)
        return found

    @cached_property
    def operations(self) -> np.ndarray:
        """Floating-point operations of each call that is a multiplication, convolution or attention; NaN for others, and
        where shapes do not tell."""
        found = np.full(len(self.calls.row), np.nan)
        for call in np.flatnonzero(self.are(COUNTED) & self.calls.starts_inside).tolist():
            found[call] = COUNTED[self.name[call]](self.dims[call]) or np.nan
        for call in np.flatnonzero(self.are({CONVOLUTION}) & self.calls.starts_inside).tolist():
            output = self._output_of(call)
            found[call] = convolution(self.dims[call], output) if output else np.nan
        return found

    def _output_of(self, call: int) -> list[int] | None:
        """Size of a convolution's output: of the input of the next operation on the thread that takes such a tensor."""
        dims = self.dims[call]
        if len(dims) < 2 or len(dims[0]) < 3 or len(dims[0]) != len(dims[1]):
            return None
        batch, channels, end = dims[0][0], dims[1][0], self.end_ns[call]
        for after in range(call + 1, min(call + _MAX_CALLS_TO_OUTPUT, len(self.dims))):
            if self.tid[after] != self.tid[call]:
                break
            given = self.dims[after][0] if self.dims[after] else []
            if self.start_ns[after] >= end and len(given) == len(dims[0]) and given[:2] == [batch, channels]:
                return given
        return None


def gpu_calls(events: Table, rank: Rank, steps: RecordedSteps) -> GpuCalls:
    """The calls of one rank, with the table of its events."""
    steady = SteadyTime([steps.boundaries[rank][step] for step in steps.steady])
    calls = calls_of(events, steady, by_shape=False)
    return GpuCalls(
        events,
        calls,
        launched_by(events, calls, steady, is_window=steps.run.unit == "window"),
        len(steps.steady),
        steady.total_ns,
    )
