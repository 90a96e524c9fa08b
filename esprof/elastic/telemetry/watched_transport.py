"""A transport that records its collectives and their times."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.futures import Future

from esprof.core.assignment import Est
from esprof.core.types import Bytes, Ns, Rank
from esprof.elastic.runtime.transport import Transport, Work
from esprof.elastic.telemetry.spans import StepSpans


@dataclass
class TimedCollective:
    """One collective as this rank saw it; times are ns since the Unix epoch."""

    kind: str
    sequence: int
    """Number of the collective among all that the transport made, the same on all ranks."""
    root: Rank | None
    in_bytes: Bytes
    out_bytes: Bytes
    dtype: str
    est: Est | None
    """The EST in whose step the collective was started; None outside of EST steps."""
    start_ns: Ns
    launched_ns: Ns
    """When the call that started the collective returned."""
    end_ns: Ns | None = None
    """When the collective was done or, if the backend does not report that, when the wait for it ended; None while
    running."""
    waits: tuple[tuple[Ns, Ns], ...] = ()
    """(start, end) of each time that this rank's thread waited for the collective."""


class WatchedTransport:
    """Passes all calls on to a transport and records them until `take`. Records nothing in a job of one process."""

    def __init__(self, transport: Transport, spans: StepSpans) -> None:
        self.rank = transport.rank
        self.world = transport.world
        self._transport = transport
        self._spans = spans
        self._collectives: list[TimedCollective] = []
        self._made = 0

    def exchange(self, out: Tensor, out_sizes: list[int], send: Tensor, sizes: list[int]) -> Work:
        start = self._transport.exchange
        return self._watch("all_to_all", lambda: start(out, out_sizes, send, sizes), send, out)

    def gather(self, out: Tensor, mine: Tensor) -> Work:
        return self._watch("all_gather", lambda: self._transport.gather(out, mine), mine, out)

    def share(self, whole: Tensor) -> Work:
        own = whole.chunk(self.world)[self.rank]
        return self._watch("all_gather", lambda: self._transport.share(whole), own, whole)

    def broadcast(self, tensor: Tensor, source: int) -> Work:
        return self._watch("broadcast", lambda: self._transport.broadcast(tensor, source), tensor, tensor, source)

    def add(self, tensor: Tensor) -> Work:
        return self._watch("all_reduce", lambda: self._transport.add(tensor), tensor, tensor)

    def take(self) -> list[TimedCollective]:
        """The collectives started since the last call. All must have been waited for."""
        taken, self._collectives = self._collectives, []
        return taken

    def _watch(self, kind: str, start: Callable[[], Work], send: Tensor, out: Tensor, root: Rank | None = None) -> Work:
        if self.world == 1:
            return start()
        start_ns = time.time_ns()
        work = start()
        launched_ns = time.time_ns()
        sizes = (send.nbytes, out.nbytes)
        collective = TimedCollective(
            kind, self._made, root, *sizes, str(out.dtype)[6:], self._spans.est, start_ns, launched_ns
        )
        self._made += 1
        self._collectives.append(collective)
        return _TimedWork(work, collective, out.device)


class _TimedWork:
    """A running collective whose end and waits are recorded.

    NCCL reports a collective as done once it is queued in a stream: on a GPU only the end of the wait shows its end.
    """

    def __init__(self, work: Work, collective: TimedCollective, device: torch.device) -> None:
        self._work = work
        self._collective = collective
        self._device = device
        future = getattr(work, "get_future", None)
        if future is not None and device.type == "cpu":
            future().add_done_callback(self._done)

    def wait(self) -> object:
        begin = time.time_ns()
        result = self._work.wait()
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()  # The wait itself was only queued in the stream.
        end = time.time_ns()
        self._collective.waits += ((begin, end),)
        self._ended(end)
        return result

    def _done(self, _: Future[object]) -> None:
        self._ended(time.time_ns())

    def _ended(self, end: Ns) -> None:
        # Called twice, by the backend's thread and by the wait, in any order: the earlier time counts.
        self._collective.end_ns = end if self._collective.end_ns is None else min(self._collective.end_ns, end)
