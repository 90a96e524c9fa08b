"""Measures gradient exchanges with other assignments or codecs, in the running job between two steps."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from esprof.core.assignment import Assignment
from esprof.core.tree import cover
from esprof.core.types import NS_PER_S, Rank
from esprof.elastic.compress.codecs.codec import Codec
from esprof.elastic.compress.codecs.registry import codec, examples
from esprof.elastic.plans.memory import available
from esprof.elastic.reduce.layout import Layout
from esprof.elastic.reduce.stash import Stash
from esprof.elastic.reduce.tree_reducer import TreeReducer
from esprof.elastic.runtime.agree import gather_values
from esprof.elastic.runtime.training import TrainingState
from esprof.elastic.runtime.transport import Transport
from esprof.run.request import TelemetryRequest
from esprof.run.run import Exchange

_MIN_REPEATS, _MAX_REPEATS, _MAX_REPEATING_S = 3, 10, 1.0
"""Bounds of the repeats of each measurement, and of their total time, s."""
_MAX_TOTAL_S = 15.0
"""No exchange is started after so many seconds."""
_MAX_LATENESS_S = 0.5
"""Maximum simulated lateness of the last rank, s: by then most data of the others has arrived."""
_TRIAL_ELEMENTS = 64
"""Elements by which it is tried whether a codec works."""
_FLAT_TENSORS_NEEDED = 4
"""Flat gradients that a measurement needs besides the partial sums: the gradient, the mean, what is sent, and an
inbox."""


def measure_exchanges(
    request: TelemetryRequest,
    est_s: Sequence[float],
    state: TrainingState,
    layout: Layout,
    transport: Transport,
    assignment: Assignment,
    leaves: Callable[[], bool],
) -> tuple[Exchange, ...]:
    """What is asked for, as `measured` has it, of a running job; nothing where its gradients are not added as a
    tree."""
    if not isinstance(state.reducer, TreeReducer):
        return ()
    spec, scaled = state.codec_spec(state.next_step), state.scaler.is_enabled()
    with torch.no_grad():
        return measured(request, layout, transport, assignment, est_s, spec, scaled=scaled, leaves=leaves)


def measured(
    request: TelemetryRequest,
    layout: Layout,
    transport: Transport,
    assignment: Assignment,
    est_s: Sequence[float],
    spec: str,
    *,
    scaled: bool,
    leaves: Callable[[], bool],
) -> tuple[Exchange, ...]:
    """What is asked for: the exchange with the job's codec `spec` and the ESTs placed in some other ways; and, where
    it has none, that by each known codec which makes fewer bytes travel. `scaled` is whether the loss is; `est_s` is
    what an EST takes on each rank, by which ranks come to the exchange one after the other, as in a step. Once a rank
    `leaves`, no other is started; those that would need more memory than there is are left out.

    All ranks call this. Each EST's gradient is taken to be the mean of the last step, which all ranks have; no
    generator draws, and nothing of the job changes.
    """
    if not (request.ests or request.max_vnmse) or not _has_room(layout, transport, _FLAT_TENSORS_NEEDED):
        return ()
    gradient = _last_mean(layout)
    norm = gather_values(transport, float(torch.linalg.vector_norm(gradient, dtype=torch.float64)))[0]
    if not math.isfinite(norm):
        gradient.zero_()  # What an exchange takes does not depend on it.

    def exchange(ests: Assignment, made: Codec | None) -> _PlacedExchange:
        return _PlacedExchange(layout, transport, ests, made, gradient, est_s)

    def wanted() -> Iterator[tuple[_PlacedExchange, float | None]]:
        for ests in _fitting(request, assignment):
            if _has_room(layout, transport, _FLAT_TENSORS_NEEDED + len(cover(ests.ests[transport.rank], ests.n_est))):
                yield exchange(ests, codec(spec)), None
        is_informative = math.isfinite(norm) and norm > 0  # Of zeros, or what is no number, no codec loses anything.
        if not request.max_vnmse or spec != "none" or not is_informative:
            return
        yield exchange(assignment, None), None
        for made in _codecs(transport, scaled=scaled):
            one = exchange(assignment, made)
            if one.sends_less and _has_room(layout, transport, _FLAT_TENSORS_NEEDED + assignment.n_est):
                yield one, request.max_vnmse

    return tuple(_in_time(wanted(), transport, leaves))


def _last_mean(layout: Layout) -> Tensor:
    """The gradient that all ranks have from the last step, in a flat tensor of the layout."""
    gradient = layout.new().zero_()
    for slot in layout.slots:
        if slot.parameter.grad is not None:
            slot.of(gradient).copy_(slot.parameter.grad.flatten())
    return gradient


def _in_time(
    wanted: "Iterable[tuple[_PlacedExchange, float | None]]", transport: Transport, leaves: Callable[[], bool]
) -> Iterator[Exchange]:
    """The measurements, until their time limit or until a rank was asked to leave."""
    started = time.monotonic()
    for one, most_lost in wanted:
        gathered = gather_values(transport, [time.monotonic() - started > _MAX_TOTAL_S, leaves()])
        if gathered[0][0] or any(is_leaving for _, is_leaving in gathered):
            return
        if (measurement := one.measure(most_lost)) is not None:
            yield measurement


def _has_room(layout: Layout, transport: Transport, tensors: int) -> bool:
    """Whether every rank has memory for this number of further flat gradients."""
    there = [available()]
    if layout.device.type == "cuda":
        unused = torch.cuda.memory_reserved(layout.device) - torch.cuda.memory_allocated(layout.device)
        there.append(torch.cuda.mem_get_info(layout.device)[0] + unused)
    needed = tensors * layout.numel * layout.dtype.itemsize
    return all(gather_values(transport, all(free is None or free > needed for free in there)))


def _fitting(request: TelemetryRequest, now: Assignment) -> Iterator[Assignment]:
    """The requested assignments that fit this job."""
    for ests in request.ests:
        if (len(ests), sorted(est for of_rank in ests for est in of_rank)) == (now.world, list(range(now.n_est))):
            yield Assignment.of(ests)


def _codecs(transport: Transport, *, scaled: bool) -> Iterator[Codec]:
    """The codecs that all ranks know and the job supports."""
    mine = {spec: made for spec in examples() if (made := _made(spec)) is not None and not (scaled and made.has_state)}
    gathered = gather_values(transport, list(mine))
    return (mine[spec] for spec in gathered[0] if all(spec in known for known in gathered))


def _made(spec: str) -> Codec | None:
    """A codec that encodes and decodes; None where it does not. It may be somebody's own, and nobody has chosen it
    here."""
    try:
        made = codec(spec)
        if made is not None:
            made.decode(made.encode(torch.ones(_TRIAL_ELEMENTS), {}), torch.empty(_TRIAL_ELEMENTS))
    except Exception:  # noqa: BLE001 Whatever somebody's own code may raise.
        return None
    return made


class _PlacedExchange:
    """An exchange with one assignment and one codec, with its own tensors."""

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
        self._waits_s, self._last_s = _lateness(est_s, assignment, transport.rank)
        self._reducer = TreeReducer(layout, transport, assignment.n_est, Stash.on(layout.device))
        self._begin()
        self.sends_less = self._reducer.gathers

    def measure(self, most_lost: float | None) -> Exchange | None:
        """The measurement; None if the relative squared error exceeds `most_lost`."""
        first_ns, mean = self._once()
        lost = self._layout.lost(mean, self._gradient)
        repeats = min(
            _MAX_REPEATS, max(_MIN_REPEATS, int(_MAX_REPEATING_S * NS_PER_S / (first_ns + self._last_s * NS_PER_S)))
        )
        # No number, where the codec's own do not reach so far, is too much. And kernels of several types of devices may
        # differ in the last bit: rank 0's figure counts.
        if most_lost is not None and not lost <= most_lost:
            repeats = 0
        repeats = gather_values(self._transport, repeats)[0]
        if not repeats:
            return None
        took = [self._once()[0] for _ in range(repeats)]
        gathered = gather_values(self._transport, [took, self._reducer.bytes_sent])
        return Exchange(
            ests=self._assignment.ests,
            codec="none" if self._codec is None else self._codec.spec,
            samples_ns=tuple(map(max, zip(*(took for took, _ in gathered), strict=True))),
            sent=max(sent for _, sent in gathered),
            vnmse=lost if math.isfinite(lost) else None,
        )

    def _begin(self) -> None:
        self._reducer.begin(self._assignment, self._codec, {est: {} for est in self._mine})

    def _once(self) -> tuple[int, Tensor]:
        """(ns from when the last rank comes, the mean); the tensor is valid until the next call."""
        self._begin()
        self._transport.add(torch.zeros(1, device=self._layout.device)).wait()
        self._settle()
        started = time.perf_counter_ns() + round(self._last_s * NS_PER_S)
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
        return max(1, time.perf_counter_ns() - started), mean

    def _settle(self) -> None:
        if self._layout.device.type == "cuda":
            torch.cuda.synchronize(self._layout.device)


def _lateness(est_s: Sequence[float], assignment: Assignment, rank: Rank) -> tuple[float, float]:
    """(how much later than the first rank this one comes to the exchange, how much later the last one does), in
    seconds."""
    comes_s = [each * len(ests) for each, ests in zip(est_s, assignment.ests, strict=True)]
    last_s = max(comes_s) - min(comes_s)
    scale = min(1.0, _MAX_LATENESS_S / last_s) if last_s > 0 else 1.0
    return (comes_s[rank] - min(comes_s)) * scale, last_s * scale
