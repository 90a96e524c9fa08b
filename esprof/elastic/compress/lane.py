"""Runs exchanges concurrently with the backward pass: in a thread, or on a separate GPU stream."""

from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.futures import Future

from esprof.elastic.compress.exchanges import Steps
from esprof.elastic.runtime.transport import Work


class ExchangeLane(Protocol):
    """Runs exchanges one after the other, in the order of submission."""

    def run(self, under_way: Work | None, steps: Steps, result: Tensor) -> Future[Tensor]:
        """Wait for `under_way`, then complete `steps`; returns a future of `result`."""

    def close(self) -> None: ...


def lane_for(device: torch.device) -> ExchangeLane:
    return StreamLane(device) if device.type == "cuda" else ThreadLane()


class ThreadLane:
    """A thread, which blocks in collectives of CPU tensors."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Work | None, Steps, Tensor, Future[Tensor]] | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name="esprof-compression", daemon=True)
        self._thread.start()

    def run(self, under_way: Work | None, steps: Steps, result: Tensor) -> Future[Tensor]:
        future: Future[Tensor] = Future()
        self._queue.put((under_way, steps, result, future))
        return future

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (task := self._queue.get()) is not None:
            under_way, steps, result, future = task
            try:
                _drive(under_way, steps)
            except Exception as error:  # noqa: BLE001 - whoever waits for the future gets it
                future.set_exception(cast(Any, error))
            else:
                future.set_result(result)


class StreamLane:
    """A GPU stream: everything is launched at once, and the device waits."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def run(self, under_way: Work | None, steps: Steps, result: Tensor) -> Future[Tensor]:
        with self._entered():
            _drive(under_way, steps)
            result.record_stream(self._stream)
            future: Future[Tensor] = Future(devices=[self._device])
            future.set_result(result)
        return future

    @contextmanager
    def _entered(self) -> Iterator[None]:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            yield

    def close(self) -> None:
        pass


def _drive(under_way: Work | None, steps: Steps) -> None:
    if under_way is not None:
        under_way.wait()
    for work in steps:
        work.wait()
