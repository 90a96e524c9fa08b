"""Plans for plain DistributedDataParallel: what of them needs no elastic runtime."""

import warnings
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from esprof.elastic.compression.hook import compress
from esprof.elastic.signature import model_signature
from esprof.errors import UsageError
from esprof.plan import Plan, read_plan


def apply_plan(model: nn.Module, plan: Plan | str | Path, **ddp_options: Any) -> DistributedDataParallel:
    """Wrap `model`, which is no DistributedDataParallel yet, as the plan says: with its size of buckets and its compression
    of gradients. All ranks call it.

    `ddp_options` are DistributedDataParallel's; a `bucket_cap_mb` among them counts more than the plan's. What only the
    elastic runtime can adopt is left out, with a warning. The compression, for its checkpoints and changes, is the
    attribute `compression` of what is returned, None where the plan has none. Raises InputError where the file is no plan,
    UsageError where it is of another model or another number of processes.
    """
    if isinstance(plan, str | Path):
        plan = read_plan(Path(plan))
    if isinstance(model, DistributedDataParallel):
        raise UsageError("the model is wrapped already", remedy="Give apply_plan the bare model.")
    if plan.job.model_signature not in (None, model_signature(model)):
        raise UsageError("the plan is for another model")
    if plan.job.world != (world := dist.get_world_size()):
        raise UsageError(f"the plan is for {plan.job.world} processes, and here are {world}")
    if plan.parts.assignment is not None:
        warnings.warn("the plan's assignment of ESTs needs esprof.elastic.ElasticTrainer", stacklevel=2)
    part = plan.parts.compression
    if part is not None and part.body.bucket_mb is not None:
        asked = ddp_options.setdefault("bucket_cap_mb", part.body.bucket_mb)
        if asked != part.body.bucket_mb:
            warnings.warn(f"the plan is for buckets of {part.body.bucket_mb:g} MiB, not {asked:g}", stacklevel=2)
    ddp = DistributedDataParallel(model, **ddp_options)
    ddp.compression = None if part is None else compress(ddp, part.body)  # type: ignore[assignment]
    return ddp
