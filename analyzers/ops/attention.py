"""Time of attention by implementation."""

from collections.abc import Sequence

import numpy as np

from esprof.analyzers.ops.answer import Attention
from esprof.analyzers.ops.gpu_calls import GpuCalls
from esprof.analyzers.views.attention_kernels import of_kernel, of_operation
from esprof.core.types import us


def attention(ranks: Sequence[GpuCalls]) -> tuple[Attention, ...]:
    """The implementations of attention on these ranks, most time first."""
    took, launched = dict[str, float](), dict[str, int]()
    for calls in ranks:
        names = _implementations(calls)
        for name in {one for one in names if one is not None}:
            mine = np.array([one == name for one in names], bool)
            took[name] = took.get(name, 0.0) + float(calls.work.dur_ns[mine].sum())
            launched[name] = launched.get(name, 0) + int(mine.sum())
    per = sum(calls.steps for calls in ranks)
    return tuple(
        Attention(implementation=name, kernels=round(launched[name] / per, 3), us=us(took[name] / per))
        for name in sorted(took, key=lambda one: -took[one])
    )


def _implementations(calls: GpuCalls) -> list[str | None]:
    """The implementation of attention that each piece of work is part of: by its kernel, else by another kernel that the
    same operation launched, else by that operation."""
    codes, texts = calls.kernel
    by_kernel = {code: of_kernel(texts[code]) for code in np.unique(codes).tolist()}
    by_operation = {key.name: of_operation(key.name) for key in calls.calls.keys}
    operation = calls.within(calls.are({name for name, found in by_operation.items() if found is not None})).tolist()
    named = [
        by_kernel[code] if is_kernel else None for code, is_kernel in zip(codes.tolist(), calls.is_kernel, strict=True)
    ]
    by_call = {call: name for call, name in zip(operation, named, strict=True) if call >= 0 and name is not None}
    return [
        (name or by_call.get(call) or (by_operation[calls.name[call]] if call >= 0 else None)) if is_kernel else None
        for name, call, is_kernel in zip(named, operation, calls.is_kernel, strict=True)
    ]
