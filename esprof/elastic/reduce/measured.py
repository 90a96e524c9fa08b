"""What it takes to bring the ESTs' gradients to their mean, placed or encoded otherwise than now: measured by the running
job between two steps."""

import time
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from esprof.assignment import Assignment
from esprof.elastic.agree import tell_all
from esprof.elastic.codecs.codec import Codec
from esprof.elastic.codecs.registry import codec, examples
from esprof.elastic.reduce.layout import Layout
from esprof.elastic.reduce.tree_reducer import TreeReducer
from esprof.elastic.transport import Transport
from esprof.trace.request import Request
from esprof.trace.run import Exchange
from esprof.types import NS_PER_S

_LEAST, _MOST, _WITHIN_S = 3, 10, 1.0
"""Repeats of each: as many as there is time for."""
_ALL_S = 15.0
"""After so long no other one is begun."""


def measured(
    request: Request,
    layout: Layout,
    transport: Transport,
    assignment: Assignment,
    est_s: Sequence[float],
    spec: str,
    *,
    scaled: bool,
) -> tuple[Exchange, ...]:
    """What is asked for: the exchange with the job's codec `spec` and the ESTs placed in some other ways; and, where it has
    none, that by each known codec which makes fewer bytes travel. `scaled` is whether the loss is; `est_s` is what an EST
    takes on each rank, by which ranks come to the exchange one after the other, as in a step.

    All ranks call this. Each EST's gradient is taken to be the mean of the last step, which all ranks have; no generator
    draws, and nothing of the job changes.
    """
    gradient = layout.new().zero_()
    for slot in layout.slots:
        if slot.parameter.grad is not None:
            slot.of(gradient).copy_(slot.parameter.grad.flatten())

    def exchange(ests: Assignment, made: Codec | None) -> _Exchange:
        return _Exchange(layout, transport, ests, made, gradient, est_s)

    def wanted() -> Iterator[tuple[_Exchange, float | None]]:
        for ests in _fitting(request, assignment):
            yield exchange(ests, codec(spec)), None
        if not request.max_vnmse or spec != "none":
            return
        yield exchange(assignment, None), None
        for made in _codecs(scaled=scaled):
            one = exchange(assignment, made)
            if one.sends_less:
                yield one, request.max_vnmse

    return tuple(_in_time(wanted(), transport))


def _in_time(wanted: "Iterable[tuple[_Exchange, float | None]]", transport: Transport) -> Iterator[Exchange]:
    """The measurements, until they have taken so long that the job should not wait for more."""
    begun = time.monotonic()
    for one, most_lost in wanted:
        if tell_all(transport, time.monotonic() - begun > _ALL_S)[0]:
            return
        if (measurement := one.measure(most_lost)) is not None:
            yield measurement


def _fitting(request: Request, now: Assignment) -> Iterator[Assignment]:
    """The assignments that are asked about, as far as they are of this job."""
    for ests in request.ests:
        if (len(ests), sorted(est for of_rank in ests for est in of_rank)) == (now.world, list(range(now.n_est))):
            yield Assignment.of(ests)


def _codecs(*, scaled: bool) -> Iterator[Codec]:
    for spec in examples():
        made = codec(spec)
        if made is not None and not (scaled and made.has_state):
            yield made


class _Exchange:
    """The exchange with ESTs placed so and by one codec, with tensors of its own."""

    def __init__(
        self,
        layout: Layout,
        transport: Transport,
        assignment: Assignment,
        made: Codec | None,
        gradient: Tensor,
        est_s: Sequence[float],
    ) -> None:
        self._layout, self._transport, self._assignment = layout, transport, assignment
        self._codec, self._gradient = made, gradient
        self._mine: Sequence[int] = assignment.ests[transport.rank]
        comes_s = [each * len(ests) for each, ests in zip(est_s, assignment.ests, strict=True)]
        self._waits_s, self._last_s = comes_s[transport.rank] - min(comes_s), max(comes_s) - min(comes_s)
        self._reducer = TreeReducer(layout, transport, assignment.n_est)
        self._begin()
        self.sends_less = self._reducer.gathers

    def measure(self, most_lost: float | None) -> Exchange | None:
        """None where it loses more than that."""
        first_ns, mean = self._once()
        lost = self._layout.lost(mean, self._gradient)
        repeats = min(_MOST, max(_LEAST, int(_WITHIN_S * NS_PER_S / first_ns)))
        if most_lost is not None and lost > most_lost:
            repeats = 0
        repeats = tell_all(self._transport, repeats)[
            0
        ]  # Kernels of several types of devices may differ in the last bit.
        if not repeats:
            return None
        took = [self._once()[0] for _ in range(repeats)]
        told = tell_all(self._transport, [took, self._reducer.bytes_sent])
        return Exchange(
            ests=self._assignment.ests,
            codec="none" if self._codec is None else self._codec.spec,
            samples_ns=tuple(map(max, zip(*(took for took, _ in told), strict=True))),
            sent=max(sent for _, sent in told),
            vnmse=lost,
        )

    def _begin(self) -> None:
        self._reducer.begin(self._assignment, self._codec, {est: {} for est in self._mine})

    def _once(self) -> tuple[int, Tensor]:
        """(ns from when the last rank comes, the mean); the tensor is valid until the next call."""
        self._begin()
        self._transport.add(torch.zeros(1, device=self._layout.device)).wait()
        self._settle()
        begun = time.perf_counter_ns() + round(self._last_s * NS_PER_S)
        time.sleep(self._waits_s)
        for est in self._mine:
            flat = self._reducer.buffer().copy_(self._gradient)
            if est != self._mine[-1]:
                self._reducer.fold(est, flat)
            else:
                self._reducer.send_last(est, flat)
        for slot in self._layout.slots:
            self._reducer.ready(slot)
        mean = self._reducer.finish()
        self._settle()
        return max(1, time.perf_counter_ns() - begun), mean

    def _settle(self) -> None:
        if self._layout.device.type == "cuda":
            torch.cuda.synchronize(self._layout.device)
