"""The mean of all ESTs' gradients by a plain all-reduce, whose bits depend on which EST runs where."""

from dataclasses import dataclass, field

from torch import Tensor

from esprof.core.assignment import Assignment, Est
from esprof.elastic.compress.codecs.codec import Codec
from esprof.elastic.reduce.layout import Bucket, Countdown, Layout, Slot
from esprof.elastic.reduce.tree_reducer import CodecStates, pass_through
from esprof.elastic.runtime.transport import Transport, Work


@dataclass
class NaiveReducer:
    """Sums the gradients of a rank's ESTs in order, then all-reduces each bucket: ordinary gradient accumulation.

    The same processes with the same assignment get the same bits again (level D0), others do not. On a rank no more
    than two gradients are held, and all-reduces may be any that the transport has.
    """

    layout: Layout
    transport: Transport
    n_est: int
    bytes_sent: int = 0
    _free: list[Tensor] = field(default_factory=list)

    def begin(self, assignment: Assignment, codec: Codec | None, states: CodecStates) -> None:
        self.bytes_sent = 0
        self._codec = codec
        self._states = states
        self._sum: Tensor | None = None
        self._last: tuple[Est, Tensor] | None = None
        self._countdown = Countdown(self.layout)
        self._works: list[Work] = []

    def buffer(self) -> Tensor:
        return self._free.pop() if self._free else self.layout.new()

    def sum_before(self, est: Est) -> Tensor | None:
        return None

    def fold(self, est: Est, flat: Tensor) -> None:
        self._pass_codec(est, flat, self.layout.slots)
        if self._sum is None:
            self._sum = flat
        else:
            self._sum.add_(flat)
            self._free.append(flat)

    def send_last(self, est: Est, flat: Tensor) -> None:
        self._last = est, flat

    def ready(self, slot: Slot) -> None:
        if self._last is not None:
            for bucket in self._countdown.arrived(slot):
                self._send(bucket, *self._last)

    def finish(self) -> Tensor:
        est, result = self._last or (None, self.buffer().zero_())
        for bucket in self._countdown.rest():
            self._send(bucket, est, result)
        for work in self._works:
            work.wait()
        self._free += [result] if self._sum is None else [self._sum, result]
        return result.mul_(1 / self.n_est)

    def state(self) -> dict[str, Tensor]:
        return {}

    def load(self, state: dict[str, Tensor]) -> None: ...

    def _send(self, bucket: Bucket, est: Est | None, flat: Tensor) -> None:
        if est is not None:
            self._pass_codec(est, flat, bucket.slots)
        segment = flat[bucket.start : bucket.stop]
        if self._sum is not None:
            segment.add_(self._sum[bucket.start : bucket.stop])
        self._works.append(self.transport.add(segment))
        self.bytes_sent += 2 * segment.nbytes * (self.transport.world - 1) // self.transport.world

    def _pass_codec(self, est: Est, flat: Tensor, slots: tuple[Slot, ...]) -> None:
        if self._codec is not None:
            pass_through(self._codec, flat, slots, self._states[est])
