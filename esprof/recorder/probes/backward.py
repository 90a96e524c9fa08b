"""How much a backward pass slows what goes on beside it, and is slowed by it.

The pass is one of ours, of matrix products: the job's own could not be repeated without its data and its state.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from .agreement import filled
from .bench import Bench, MeasuredSizes, Once
from .collectives import measured, started, tensor_of

_PASS_NS = 8_000_000
"""About how long a pass takes: short, so that a count of passes tells the time in which transfers go on."""
_ROWS, _WIDTH = 128, 512
_MAX_LAYERS = 64
_BESIDE_NS = 500_000_000
"""About how long transfers, or encodings, go on beside passes."""
_MAX_TRANSFERS_PER_REPEAT = 256
_MAX_REPEATS = 20


class RepeatedBackward:
    """A backward pass that can be repeated: a chain of matrix products on the bench's device."""

    def __init__(self, bench: Bench) -> None:
        self._device = bench.device
        self._weights: list[torch.Tensor] = []
        self._loss = torch.zeros(())
        self._make(1)
        for _ in range(2):
            took = min(self._took_ns() for _ in range(3))
            self._make(max(1, min(_MAX_LAYERS, round(len(self._weights) * _PASS_NS / took))))

    @property
    def flop(self) -> int:
        """Two products a layer, of which each multiplies and adds."""
        return 4 * _ROWS * _WIDTH * _WIDTH * len(self._weights)

    def once(self) -> None:
        torch.autograd.grad(self._loss, self._weights, retain_graph=True)
        if self._device.type == "cuda":
            # What other streams do is not waited for.
            torch.cuda.current_stream(self._device).synchronize()

    def _make(self, layers: int) -> None:
        with torch.enable_grad():
            # Products of these neither vanish nor grow: numbers near zero are slow.
            weight = filled(_WIDTH * _WIDTH, self._device, 1 / _WIDTH).view(_WIDTH, _WIDTH)
            self._weights = [weight.clone().requires_grad_() for _ in range(layers)]
            through = filled(_ROWS * _WIDTH, self._device, 0.5).view(_ROWS, _WIDTH)
            for one in self._weights:
                through = torch.tanh(through @ one)
            self._loss = through.sum()

    def _took_ns(self) -> int:
        began = time.perf_counter_ns()
        self.once()
        return max(1, time.perf_counter_ns() - began)


def alone(bench: Bench, backward: RepeatedBackward) -> None:
    """The pass with nothing beside it, on all ranks at once, as in the job."""
    bench.sweep(bench.mine("backward", "matmul", "flop"), [backward.flop], lambda _: backward.once, in_step=True)


def beside_all_reduce(bench: Bench, backward: RepeatedBackward, sizes: list[int]) -> None:
    """Passes while all-reduces go on, so many of each size that they last about half a second; and these beside passes.

    The samples of both are means over that time. All ranks stop when the all-reduces are through. Before each repeat, as
    many passes with nothing beside them, noted under this size, too: the machine may not be as fast later.
    """
    for ranks, group in bench.agreement.groups[:1]:
        for number, size in enumerate(sizes):
            bench.take(1 / (len(sizes) - number))
            buffer, (took_ns,) = tensor_of(size, bench), bench.agreement.most(_time_of(bench, group, size))
            count = max(2, min(_MAX_TRANSFERS_PER_REPEAT, _BESIDE_NS // took_ns))
            for _ in range(max(1, min(_MAX_REPEATS, bench.repeats(_BESIDE_NS + count * took_ns, to_come=1)))):
                bench.agreement.meet()
                bench.note(bench.mine("backward", "matmul", "bytes"), size, [_pass_alone(backward)])
                bench.agreement.meet()
                began = time.perf_counter_ns()
                works = started(group, *[buffer] * count)
                passes = _passes_until(backward, lambda works=works: works[-1].is_completed())  # type: ignore[misc]
                spent = time.perf_counter_ns() - began
                for work in works:
                    work.wait()
                bench.note(bench.mine("backward", "matmul", "bytes", beside="all_reduce"), size, [spent // passes])
                bench.note(measured(bench, "all_reduce", ranks, beside="backward"), size, [spent // count])


def beside(bench: Bench, backward: RepeatedBackward, other: str, what: MeasuredSizes, size: int, once: Once) -> None:
    """`what`, done by this thread while another does passes, and the passes beside it: `other` names it there."""
    began = time.perf_counter_ns()
    once()
    took_ns = max(1, time.perf_counter_ns() - began)
    count = max(2, min(_MAX_TRANSFERS_PER_REPEAT, _BESIDE_NS // took_ns))
    for _ in range(max(1, min(_MAX_REPEATS, bench.repeats(count * took_ns)))):
        passes = _Passes(backward)
        began = time.perf_counter_ns()
        for _ in range(count):
            once()
        bench.settle()
        spent = time.perf_counter_ns() - began
        done = passes.stop()
        bench.note(what, size, [spent // count])
        if done:
            bench.note(bench.mine("backward", "matmul", what.unit, beside=other), size, [spent // done])


class _Passes(threading.Thread):
    """Passes in a thread of their own, until they are stopped."""

    def __init__(self, backward: RepeatedBackward) -> None:
        super().__init__(name="esprof-probe", daemon=True)
        self._backward = backward
        self._ending = threading.Event()
        self._count = 0
        self.start()

    def run(self) -> None:
        while not self._ending.is_set():
            self._backward.once()
            self._count += 1

    def stop(self) -> int:
        """How many passes were through by now."""
        count = self._count
        self._ending.set()
        self.join()
        return count


def _pass_alone(backward: RepeatedBackward) -> int:
    """Mean ns of passes over about half a second."""
    began = time.perf_counter_ns()
    passes = _passes_until(backward, lambda: time.perf_counter_ns() - began > _BESIDE_NS)
    return (time.perf_counter_ns() - began) // passes


def _passes_until(backward: RepeatedBackward, is_over: Callable[[], bool]) -> int:
    count = 0
    while not count or not is_over():
        backward.once()
        count += 1
    return count


def _time_of(bench: Bench, group: Any, size: int) -> int:
    """ns of one all-reduce of this size, the second of two."""
    buffer = tensor_of(size, bench)
    for _ in range(2):
        began = time.perf_counter_ns()
        for work in started(group, buffer):
            work.wait()
        bench.settle()
    return max(1, time.perf_counter_ns() - began)
