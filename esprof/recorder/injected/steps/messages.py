"""Name the peers of messages in the profiler's trace, which gloo's own events lack.

`send`, `recv`, `batch_isend_irecv` and torch.distributed.pipelining all call `isend` and `irecv`, in any thread.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor

from ....run.raw.message import NamedMessage
from ...shared.torch_features import annotation, hide_from_dynamo, is_profiled_here
from ..log.circuit_breaker import CircuitBreaker
from .saves import rebind


class MessageProbe:
    """Wraps `isend` and `irecv`: while a profiler records, an annotation encloses the call (`esprof.run.raw.message`).

    Without a profiler a call costs one more test; with one, some microseconds.
    """

    def __init__(self, breaker: CircuitBreaker) -> None:
        self._breaker = breaker

    def install(self) -> None:
        if dist.is_available():
            self._wrap(dist.isend, _sent)
            self._wrap(dist.irecv, _received)

    def _wrap(self, original: Callable[..., Any], name_of: Callable[..., str | None]) -> None:
        breaker = self._breaker

        @functools.wraps(original)
        def call(*arguments: Any, **options: Any) -> Any:
            if not is_profiled_here():
                return original(*arguments, **options)
            name = breaker.run(lambda: name_of(*arguments, **options))
            if name is None:
                return original(*arguments, **options)
            with annotation(name):
                return original(*arguments, **options)

        hide_from_dynamo(call)
        rebind(original, call)


def _sent(
    tensor: Any, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None
) -> str | None:
    return _name("send", tensor, dst, group, tag, group_dst)


def _received(
    tensor: Any, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None
) -> str | None:
    return _name("recv", tensor, src, group, tag, group_src)


def _name(word: str, tensor: Any, peer: int | None, group: Any, tag: int, group_peer: int | None) -> str | None:
    """The name of the annotation; None for a receive from any rank, and for a group that this rank is not in. NCCL and
    other libraries of devices name the peers themselves."""
    group = dist.group.WORLD if group is None else group
    if not isinstance(tensor, Tensor) or not tensor.is_cpu or not isinstance(group, dist.ProcessGroup):
        return None
    if peer is None:
        if group_peer is None:
            return None
        peer = dist.get_global_rank(group, group_peer)
    return _spelt(word, peer, tag, tensor.nbytes, tensor.dtype, group.group_name)


@functools.lru_cache(maxsize=1024)
def _spelt(word: str, peer: int, tag: int, size: int, dtype: Any, group: str) -> str:
    """The name of the annotation. A job repeats few messages many times, and spelling takes longer than the look-up."""
    return NamedMessage(word, peer, tag, size, str(dtype).removeprefix("torch."), group).name
