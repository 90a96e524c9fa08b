"""`esprof.apply_plan`: the parts of a plan that a job without the elastic runtime can adopt."""

from pathlib import Path
from typing import Any, TypeVar, overload

from torch import nn
from torch.utils.data import DataLoader

from esprof.core.errors import UsageError
from esprof.core.plan import Plan, read_plan
from esprof.elastic.plans.dataloader import apply_to_loader
from esprof.elastic.plans.ddp import apply_to_model

Sample = TypeVar("Sample")


@overload
def apply_plan(target: DataLoader[Sample], plan: Plan | str | Path) -> DataLoader[Sample]: ...


@overload
def apply_plan(target: nn.Module, plan: Plan | str | Path, **ddp_options: Any) -> nn.Module: ...


def apply_plan(target: nn.Module | DataLoader[Any], plan: Plan | str | Path, **ddp_options: Any) -> Any:
    """Apply a plan, or the plan of a file, to a model or a DataLoader. All ranks call it, before the first step.

    The gradients of a model travel as the plan says. A model to which torch's `fully_shard` has been applied is returned
    itself. Any other model is wrapped in DistributedDataParallel, unless it is one already, with the plan's size of buckets
    and compression. `ddp_options` are DistributedDataParallel's; a `bucket_cap_mb` among them counts more than the plan's.
    The compression, for its checkpoints and changes, is the attribute `compression` of what is returned, None where the plan
    has none.

    Instead of a DataLoader, one is returned that makes the same batches with the plan's workers and prefetching. Random
    augmentation changes with the number of workers, which torch seeds one by one. A StatefulDataLoader stays one; states
    that it saved with another number of workers cannot be loaded.

    What only the elastic runtime can adopt is left out, with a warning. Raises InputError where the file is no plan,
    UsageError where it is of another model or another number of processes, of gradients that travel in another way, or of
    a loader that cannot be made anew.
    """
    if isinstance(plan, str | Path):
        plan = read_plan(Path(plan))
    if isinstance(target, nn.Module):
        return apply_to_model(target, plan, ddp_options)
    if not isinstance(target, DataLoader):
        raise UsageError(
            f"a plan cannot be applied to {type(target).__name__}", remedy="Pass a model, or a torch DataLoader."
        )
    if ddp_options:
        raise UsageError(f"a DataLoader cannot take options of DistributedDataParallel: {', '.join(ddp_options)}")
    return apply_to_loader(target, plan)
