"""Measure how much a backward pass and concurrent work slow each other.

The pass is synthetic, a chain of matrix products: the job's own pass cannot be repeated without its data and state.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from .agreement import filled
from .bench import Bench, MeasuredSizes, Once
from .collectives import measured_collective, start_all_reduces, tensor_of

_PASS_NS = 8_000_000
"""Approximate duration of a pass: short, so that the count of passes during collectives is a fine measure of time."""
_ROWS, _WIDTH = 128, 512
_MAX_LAYERS = 64
_OVERLAP_NS = 500_000_000
"""Approximate duration of the collectives, or encodings, that overlap passes."""
_MAX_CALLS_PER_REPEAT = 256
_MAX_REPEATS = 20


class RepeatedBackward:
    """A repeatable backward pass: a chain of matrix products on the bench's device."""

    def __init__(self, bench: Bench) -> None:
        self._device = bench.device
        self._weights: list[torch.Tensor] = []
        self._loss = torch.zeros(())
        self._make(1)
        for _ in range(2):
            pass_ns = min(self._pass_ns() for _ in range(3))
            self._make(max(1, min(_MAX_LAYERS, round(len(self._weights) * _PASS_NS / pass_ns))))

    @property
    def flop(self) -> int:
        """Floating-point operations of a pass: two products per layer, each of which multiplies and adds."""
        return 4 * _ROWS * _WIDTH * _WIDTH * len(self._weights)

    def once(self) -> None:
        torch.autograd.grad(self._loss, self._weights, retain_graph=True)
        if self._device.type == "cuda":
            # Not the whole device: collectives run on other streams.
            torch.cuda.current_stream(self._device).synchronize()

    def _make(self, layers: int) -> None:
        with torch.enable_grad():
            # Chosen so that products neither vanish nor grow: arithmetic on denormal numbers is slow.
            weight = filled(_WIDTH * _WIDTH, self._device, 1 / _WIDTH).view(_WIDTH, _WIDTH)
            self._weights = [weight.clone().requires_grad_() for _ in range(layers)]
            activations = filled(_ROWS * _WIDTH, self._device, 0.5).view(_ROWS, _WIDTH)
            for layer_weight in self._weights:
                activations = torch.tanh(activations @ layer_weight)
            self._loss = activations.sum()

    def _pass_ns(self) -> int:
        began = time.perf_counter_ns()
        self.once()
        return max(1, time.perf_counter_ns() - began)


def alone(bench: Bench, backward: RepeatedBackward) -> None:
    """Measure the pass without concurrent work, on all ranks at the same time, as in the job."""
    bench.sweep(bench.mine("backward", "matmul", "flop"), [backward.flop], lambda _: backward.once, in_step=True)


def during_all_reduce(bench: Bench, backward: RepeatedBackward, sizes: list[int]) -> None:
    """Measure passes that overlap all-reduces, and the all-reduces, for each of `sizes` in bytes.

    A repeat has enough all-reduces for about half a second; each sample is a mean over that time. All ranks stop when the
    all-reduces are complete. Passes without all-reduces are measured before each repeat and noted under the same size, as
    the speed of the machine may change over time.
    """
    for ranks, group in bench.agreement.groups[:1]:
        for number, size in enumerate(sizes):
            bench.use_share(1 / (len(sizes) - number))
            buffer, (took_ns,) = tensor_of(size, bench), bench.agreement.maxima(_all_reduce_ns(bench, group, size))
            count = max(2, min(_MAX_CALLS_PER_REPEAT, _OVERLAP_NS // took_ns))
            for _ in range(max(1, min(_MAX_REPEATS, bench.repeats(_OVERLAP_NS + count * took_ns, sizes_left=1)))):
                bench.agreement.barrier()
                bench.note(bench.mine("backward", "matmul", "bytes"), size, [_mean_pass_ns(backward)])
                bench.agreement.barrier()
                began = time.perf_counter_ns()
                works = start_all_reduces(group, *[buffer] * count)
                passes = _passes_until(backward, lambda works=works: works[-1].is_completed())  # type: ignore[misc]
                spent = time.perf_counter_ns() - began
                for work in works:
                    work.wait()
                bench.note(bench.mine("backward", "matmul", "bytes", beside="all_reduce"), size, [spent // passes])
                bench.note(measured_collective(bench, "all_reduce", ranks, beside="backward"), size, [spent // count])


def concurrent(
    bench: Bench, backward: RepeatedBackward, other: str, what: MeasuredSizes, size: int, once: Once
) -> None:
    """Measure `once` on this thread while another thread runs passes, and those passes.

    `what` and `size` describe `once` in its notes, `other` in the notes of the passes.
    """
    began = time.perf_counter_ns()
    once()
    took_ns = max(1, time.perf_counter_ns() - began)
    count = max(2, min(_MAX_CALLS_PER_REPEAT, _OVERLAP_NS // took_ns))
    for _ in range(max(1, min(_MAX_REPEATS, bench.repeats(count * took_ns)))):
        passes = _Passes(backward)
        began = time.perf_counter_ns()
        for _ in range(count):
            once()
        bench.synchronize()
        spent = time.perf_counter_ns() - began
        completed = passes.stop()
        bench.note(what, size, [spent // count])
        if completed:
            bench.note(bench.mine("backward", "matmul", what.unit, beside=other), size, [spent // completed])


class _Passes(threading.Thread):
    """A thread that runs passes until it is stopped."""

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
        """Stop the thread, and return the number of passes completed before this call."""
        count = self._count
        self._ending.set()
        self.join()
        return count


def _mean_pass_ns(backward: RepeatedBackward) -> int:
    """Mean duration of passes over about half a second, ns."""
    began = time.perf_counter_ns()
    passes = _passes_until(backward, lambda: time.perf_counter_ns() - began > _OVERLAP_NS)
    return (time.perf_counter_ns() - began) // passes


def _passes_until(backward: RepeatedBackward, is_over: Callable[[], bool]) -> int:
    count = 0
    while not count or not is_over():
        backward.once()
        count += 1
    return count


def _all_reduce_ns(bench: Bench, group: Any, size: int) -> int:
    """Duration of an all-reduce of `size` bytes, ns: the second of two calls."""
    buffer = tensor_of(size, bench)
    for _ in range(2):
        began = time.perf_counter_ns()
        for work in start_all_reduces(group, buffer):
            work.wait()
        bench.synchronize()
    return max(1, time.perf_counter_ns() - began)
