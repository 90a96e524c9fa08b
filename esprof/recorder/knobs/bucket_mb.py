"""`bucket_mb=`: the size of DistributedDataParallel's gradient buckets."""

import inspect
from typing import Any

from .knob import Knob, KnobState, Reader, combined
from .models import NONE_MADE, Arguments, watch

_MIB = 1 << 20
_MIN_MIB, _MAX_MIB = 1e-3, 1e6


def _spelled(text: str) -> str:
    try:
        size = float(text)
    except ValueError:
        size = 0.0
    if not _MIN_MIB <= size <= _MAX_MIB:
        raise ValueError(f"{text!r} is not a number of MiB from {_MIN_MIB:g} to {_MAX_MIB:g}")
    return _shown(int(size * _MIB))


def _shown(nbytes: int) -> str:
    return f"{nbytes / _MIB:.6g}"


def _install(value: str | None) -> Reader:
    from torch.nn.parallel import DistributedDataParallel

    signature = inspect.signature(DistributedDataParallel.__init__)

    def with_size(*arguments: Any, **options: Any) -> Arguments:
        bound = signature.bind(*arguments, **options)
        # Sizes for single buckets have precedence in DDP, so a job that sets them is left as it is.
        if value is not None and not bound.arguments.get("bucket_cap_mb_list"):
            bound.arguments["bucket_cap_mb"] = float(value)
        return bound.args[1:], bound.kwargs

    models = watch(with_size)

    def read() -> KnobState:
        # Read from the reducer, which forms the buckets.
        return combined([_shown(model._get_ddp_logging_data()["bucket_cap_bytes"]) for model in models], NONE_MADE)

    return read


KNOB = Knob(
    name="bucket_mb",
    is_term=True,
    example="4",
    sets="`bucket_cap_mb` of each DistributedDataParallel that the job creates",
    reads="the bucket size limit in the reducer of each model",
    spelled=_spelled,
    install=_install,
)
