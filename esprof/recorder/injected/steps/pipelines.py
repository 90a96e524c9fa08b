"""Mark the passes of a pipeline in the profiler's trace: torch.distributed.pipelining marks those of some schedules only."""

import functools
import sys
from collections.abc import Callable
from typing import Any

from ....run.raw.passes import NamedPass
from ...shared.torch_features import annotation, is_profiled_here
from ..log.circuit_breaker import CircuitBreaker
from .saves import WhenLoaded

_MODULE = "torch.distributed.pipelining.stage"


class PipelineProbe:
    """Wraps the passes of torch's pipeline stages: while a profiler records, an annotation encloses each
    (`esprof.run.raw.passes`)."""

    def __init__(self, breaker: CircuitBreaker) -> None:
        self._breaker = breaker

    def install(self) -> None:
        """Wrap them once the job imports them."""
        if _MODULE in sys.modules:
            self._wrap(_MODULE)
        else:
            sys.meta_path.insert(0, WhenLoaded((_MODULE,), self._wrap))

    def _wrap(self, module: str) -> None:
        self._breaker.run(self._wrap_stage, sys.modules[module])

    def _wrap_stage(self, module: Any) -> None:
        stage = module._PipelineStageBase
        for method, kind_of in (
            ("forward_one_chunk", lambda *_, **__: "F"),
            ("backward_one_chunk", _backward),
            ("backward_weight_one_chunk", lambda *_, **__: "W"),
        ):
            setattr(stage, method, self._marked(getattr(stage, method), kind_of))

    def _marked(self, original: Callable[..., Any], kind_of: Callable[..., str]) -> Callable[..., Any]:
        breaker = self._breaker

        def name_of(stage: Any, microbatch: int, *arguments: Any, **options: Any) -> str:
            return NamedPass(stage.stage_index, kind_of(*arguments, **options), microbatch).name

        @functools.wraps(original)
        def run(*arguments: Any, **options: Any) -> Any:
            name = breaker.run(functools.partial(name_of, **options), *arguments) if is_profiled_here() else None
            if name is None:
                return original(*arguments, **options)
            with annotation(name):
                return original(*arguments, **options)

        return run


def _backward(loss: Any = None, full_backward: bool = True, last_backward: bool = False) -> str:
    return "B" if full_backward else "I"
