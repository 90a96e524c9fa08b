"""Mark messages and the passes of pipelines in the profiler's trace.

gloo's own events lack the peers of messages. `send`, `recv`, `batch_isend_irecv` and torch.distributed.pipelining all call
`isend` and `irecv`, in any thread. torch marks the passes of some schedules only.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor

from ....run.raw.message import NamedMessage
from ....run.raw.passes import NamedPass
from ...shared.torch_features import annotation, hide_from_dynamo, is_profiled_here
from ..log.circuit_breaker import CircuitBreaker
from .saves import WhenLoaded, rebind

_STAGES = "torch.distributed.pipelining.stage"


def annotated(
    original: Callable[..., Any], name_of: Callable[..., str | None], breaker: CircuitBreaker
) -> Callable[..., Any]:
    """`original`, which runs in an annotation named by `name_of` its arguments while a profiler records."""

    @functools.wraps(original)
    def call(*arguments: Any, **options: Any) -> Any:
        name = breaker.run(lambda: name_of(*arguments, **options)) if is_profiled_here() else None
        if name is None:
            return original(*arguments, **options)
        with annotation(name):
            return original(*arguments, **options)

    return call


class MessageProbe:
    """Wraps `isend` and `irecv`: while a profiler records, an annotation encloses the call (`esprof.run.raw.message`).

    Without a profiler a call costs one more test; with one, some microseconds.
    """

    def __init__(self, breaker: CircuitBreaker) -> None:
        self._breaker = breaker

    def install(self) -> None:
        if dist.is_available():
            self._wrap(dist.isend, sent)
            self._wrap(dist.irecv, received)

    def _wrap(self, original: Callable[..., Any], name_of: Callable[..., str | None]) -> None:
        call = annotated(original, name_of, self._breaker)
        hide_from_dynamo(call)
        rebind(original, call)


def sent(
    tensor: Any, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None
) -> str | None:
    return _name("send", tensor, dst, group, tag, group_dst)


def received(
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


class PipelineProbe:
    """Wraps the passes of torch's pipeline stages: while a profiler records, an annotation encloses each
    (`esprof.run.raw.passes`)."""

    def __init__(self, breaker: CircuitBreaker) -> None:
        self._breaker = breaker

    def install(self) -> None:
        """Wrap them once the job imports them."""
        if _STAGES in sys.modules:
            self._wrap(_STAGES)
        else:
            sys.meta_path.insert(0, WhenLoaded((_STAGES,), self._wrap))

    def _wrap(self, module: str) -> None:
        self._breaker.run(self._wrap_stage, sys.modules[module])

    def _wrap_stage(self, module: Any) -> None:
        stage = module._PipelineStageBase
        for method, kind_of in (
            ("forward_one_chunk", lambda *_, **__: "F"),
            ("backward_one_chunk", _backward),
            ("backward_weight_one_chunk", lambda *_, **__: "W"),
        ):
            named = functools.partial(_pass_name, kind_of)
            setattr(stage, method, annotated(getattr(stage, method), named, self._breaker))


def _pass_name(kind_of: Callable[..., str], stage: Any, microbatch: int, *arguments: Any, **options: Any) -> str:
    return NamedPass(stage.stage_index, kind_of(*arguments, **options), microbatch).name


def _backward(loss: Any = None, full_backward: bool = True, last_backward: bool = False) -> str:
    return "B" if full_backward else "I"
