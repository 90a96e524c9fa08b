"""Plans for plain DistributedDataParallel and FSDP2: what of them needs no elastic runtime."""

import warnings
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from esprof.core.errors import MismatchError, UsageError
from esprof.core.plan import CompressionBody, Plan, read_plan
from esprof.elastic.compress.hook import compress
from esprof.elastic.compress.sharded import compress_sharded, is_sharded
from esprof.elastic.plans.signature import model_signature


def apply_plan(model: nn.Module, plan: Plan | str | Path, **ddp_options: Any) -> nn.Module:
    """Have the gradients of `model` travel as the plan says. All ranks call it, before the first backward pass.

    A model that torch's `fully_shard` has been applied to is returned itself, its gradients sent as the plan says of
    sharded ones. Another one, which is no DistributedDataParallel yet, is wrapped, with the plan's size of buckets and
    compression.

    `ddp_options` are DistributedDataParallel's; a `bucket_cap_mb` among them counts more than the plan's. What only the
    elastic runtime can adopt is left out, with a warning. The compression, for its checkpoints and changes, is the
    attribute `compression` of what is returned, None where the plan has none. Raises InputError where the file is no
    plan, UsageError where it is of another model or another number of processes, or of gradients that travel in
    another way.
    """
    if isinstance(plan, str | Path):
        plan = read_plan(Path(plan))
    if isinstance(model, DistributedDataParallel):
        raise UsageError("the model is already wrapped", remedy="Pass the unwrapped model to apply_plan.")
    if plan.job.model_signature not in (None, model_signature(model)):
        raise UsageError("the plan is for another model")
    if plan.job.world != (world := dist.get_world_size()):
        raise UsageError(f"the plan is for {plan.job.world} processes; this job has {world}")
    if plan.parts.assignment is not None:
        warnings.warn("the plan's assignment of ESTs needs esprof.elastic.ElasticTrainer", stacklevel=2)
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
                f"the plan has buckets of {section.body.bucket_mb:g} MiB; bucket_cap_mb is {asked:g}", stacklevel=2
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
            "the plan compresses gradients in buckets, but the gradients of this model are sharded", stacklevel=3
        )
    return model
