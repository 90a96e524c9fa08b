"""When collectives end: a thread that completes each of them when the peers let it."""

import heapq
import threading
import time
from typing import Any

from torch import Tensor
from torch.futures import Future

from .peers import Call, ReplayedPeers


class Completer:
    """Ends each collective when it is due, on a thread of its own."""

    def __init__(self, peers: ReplayedPeers) -> None:
        self._peers = peers
        self._pending: list[tuple[int, int, Future[Any], list[Tensor]]] = []
        """A heap of (when it ends, ns; number; future; result) of the collectives under way."""
        self._count = 0
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="ghost", daemon=True).start()

    def begin(self, call: Call, result: list[Tensor]) -> Future[Any]:
        """The real rank launches `call`. The future ends with the collective."""
        future: Future[Any] = Future()
        with self._changed:
            now_ns = time.perf_counter_ns()
            due_ns = self._peers.launch(call, now_ns)
            if due_ns > now_ns:
                self._count += 1
                heapq.heappush(self._pending, (due_ns, self._count, future, result))
                self._changed.notify()
                return future
        future.set_result(result)
        return future

    def _run(self) -> None:
        while True:
            with self._changed:
                left_ns = self._pending[0][0] - time.perf_counter_ns() if self._pending else None
                if left_ns is None or left_ns > 0:
                    self._changed.wait(None if left_ns is None else left_ns / 1e9)
                    continue
                _, _, future, result = heapq.heappop(self._pending)
            future.set_result(result)
