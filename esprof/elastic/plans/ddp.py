"""Plans for plain DistributedDataParallel and FSDP2: what of them needs no elastic runtime."""

import warnings
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from esprof.core.errors import MismatchError, UsageError
from esprof.core.plan import CompressionBody, Plan
from esprof.elastic.compress.hook import compress
from esprof.elastic.compress.sharded import compress_sharded, is_sharded
from esprof.elastic.plans.signature import model_signature


def apply_to_model(model: nn.Module, plan: Plan, ddp_options: dict[str, Any]) -> nn.Module:
    """Have the gradients of `model` travel as the plan says (`apply_plan`). Raises UsageError."""
    if isinstance(model, DistributedDataParallel):
        raise UsageError("the model is already wrapped", remedy="Pass the unwrapped model to apply_plan.")
    if plan.job.model_signature not in (None, model_signature(model)):
        raise UsageError("the plan is for another model")
    if plan.job.world != (world := dist.get_world_size()):
        raise UsageError(f"the plan is for {plan.job.world} processes; this job has {world}")
    if plan.parts.assignment is not None:
        warnings.warn("the plan's assignment of ESTs needs esprof.elastic.ElasticTrainer", stacklevel=3)
    if plan.parts.checkpoint is not None:
        every = plan.parts.checkpoint.body.every
        warnings.warn(f"the plan saves every {every} steps, which the script has to do", stacklevel=3)
    section = plan.parts.compression
    if is_sharded(model):
        return _apply_sharded(model, None if section is None else section.body, ddp_options)
    if section is not None and section.body.sharded != "none":
        raise UsageError(
            "the plan is for sharded gradients, but no module of this model is sharded",
            remedy="Call torch.distributed.fsdp.fully_shard first.",
        )
    if section is not None and section.body.bucket_mb is not None:
        asked = ddp_options.setdefault("bucket_cap_mb", section.body.bucket_mb)
        if asked != section.body.bucket_mb:
            warnings.warn(
                f"the plan has buckets of {section.body.bucket_mb:g} MiB; bucket_cap_mb is {asked:g}", stacklevel=3
            )
    ddp = DistributedDataParallel(model, **ddp_options)
    ddp.compression = None if section is None else compress(ddp, section.body)  # type: ignore[assignment]
    return ddp


def _apply_sharded(model: nn.Module, body: CompressionBody | None, ddp_options: dict[str, Any]) -> nn.Module:
    if ddp_options:
        raise UsageError(
            f"the model is sharded: it cannot take options of DistributedDataParallel: {', '.join(ddp_options)}"
        )
    wanted = "none" if body is None else body.sharded
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, wanted)
    if len(set(gathered)) > 1:
        raise MismatchError("the ranks ask for different gradient compression", remedy="Give all ranks the same plan.")
    if wanted != "none":
        compress_sharded(model)
    elif body is not None:
        warnings.warn(
            "the plan compresses gradients in buckets, but the gradients of this model are sharded", stacklevel=4
        )
    return model
