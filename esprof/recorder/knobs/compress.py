"""`compress=`: gradients compressed by esprof's communication hook."""

from functools import partial
from typing import Any

from .knob import Knob, KnobState, Reader, combined
from .models import NONE_MADE, watch

_NONE = "none"


def _spelled(text: str) -> str:
    if text.endswith(".json"):
        raise ValueError("a plan is for an elastic job (`esprof apply`); write a codec, such as fp16")
    if not text or text == _NONE:
        raise ValueError("write a codec, such as fp16")
    return text


def _install(value: str | None) -> Reader:
    def compress_first(model: Any) -> None:
        """Set the hook at the first training pass: DDP accepts one hook, and the job may set its own until then."""

        def before_forward(model: Any, inputs: Any) -> None:
            # Only passes with gradients: another pass may run on one rank alone, which must not wait for the others.
            if model.training and torch.is_grad_enabled():
                handle.remove()
                refusals.extend(_compress(model, value))

        handle = model.register_forward_pre_hook(before_forward)

    import torch

    refusals: list[str] = []
    models = watch(made=compress_first if value is not None else lambda model: None)
    return partial(_read, models, refusals)


def _compress(model: Any, codec: str | None) -> list[str]:
    """Compress the gradients of `model` on all ranks or on none. Returns the reason for a refusal, if any."""
    try:
        return _compress_all(model, str(codec))
    except Exception as fault:  # noqa: BLE001  the job continues without compression
        return [f"{type(fault).__name__}: {fault}"]


def _compress_all(model: Any, codec: str) -> list[str]:
    import torch
    import torch.distributed as dist

    reason, own = "", _hook_of(model)
    if own != _NONE:
        reason = f"the job has set a communication hook of its own ({own})"
    try:
        from esprof.elastic.compress import compress
        from esprof.elastic.compress.codecs.registry import check_codec

        check_codec(codec, scaled=False)
    except ImportError as missing:
        reason = reason or f"the job's Python cannot import esprof ({missing})"
    except Exception as fault:  # noqa: BLE001  probably an unknown codec; all ranks must know it
        reason = reason or str(fault)
    # Agree first: a rank without the hook would keep the others waiting.
    lacks = torch.tensor([1.0 if reason else 0.0], device=next(model.parameters()).device)
    dist.all_reduce(lacks, group=model.process_group)
    if lacks.item():
        return [reason or "another rank cannot"]
    compress(model, codec)
    return []


def _read(models: Any, refusals: list[str]) -> KnobState:
    reading = combined([_hook_of(model) for model in models], NONE_MADE)
    return reading._replace(reason=refusals[0]) if refusals else reading


def _hook_of(model: Any) -> str:
    """The codec of esprof's hook on `model`, the name of another hook, or `none`."""
    for hook, state in model._comm_hooks:
        if hook.__module__ != "esprof.elastic.compress.hook":
            return str(hook.__qualname__)
        return state.codec if state.step else f"{state.codec}, not called yet"
    return str(model._get_ddp_logging_data().get("comm_hook") or _NONE)


KNOB = Knob(
    name="compress",
    is_term=True,
    example="fp16",
    sets="esprof's communication hook (`esprof.elastic.compress`) on each DistributedDataParallel, at its first forward "
    "pass, unless the job has set one by then",
    reads="the hook of each model, and whether it has exchanged gradients",
    spelled=_spelled,
    install=_install,
)
