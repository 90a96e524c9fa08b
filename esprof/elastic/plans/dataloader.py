"""Plans for a DataLoader of a job without the elastic runtime: its workers and prefetching."""

import os
import sys
from typing import Any, TypeVar

import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

from esprof.core.errors import UsageError
from esprof.core.plan import LoaderBody, Plan

Sample = TypeVar("Sample")


def apply_to_loader(loader: DataLoader[Sample], plan: Plan) -> DataLoader[Sample]:
    """A new DataLoader that makes the batches of `loader`, in the same order, with the plan's workers and prefetching;
    `loader` itself if the plan does not change these.

    Torch seeds each worker on its own: with another number of workers, random augmentation gives other samples. A
    StatefulDataLoader stays one; states that it saved with another number of workers cannot be loaded.

    Raises UsageError if the plan is for another number of processes, or the loader cannot be made anew.
    """
    if plan.job.world != (world := _world()):
        raise UsageError(f"the plan is for {plan.job.world} processes; this job has {world}")
    section = plan.parts.loader
    if section is None or section.body == LoaderBody(workers=loader.num_workers, prefetch=loader.prefetch_factor):
        return loader
    _check(loader, section.body)
    return type(loader)(loader.dataset, **_batching(loader), **_making(loader, section.body))


def _world() -> int:
    """Number of processes of the job; a script may make its loader before it initialises torch.distributed."""
    return dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", "1"))


def _check(loader: DataLoader[Any], body: LoaderBody) -> None:
    """Raise UsageError if the loader cannot be made anew."""
    kind = type(loader)
    if kind is not DataLoader and not _is_stateful(loader):
        raise UsageError(
            f"{kind.__module__}.{kind.__qualname__} may take other arguments than torch's DataLoader",
            remedy=f"Make it with num_workers={body.workers} and prefetch_factor={body.prefetch}.",
        )
    if isinstance(loader.dataset, IterableDataset) and body.workers != loader.num_workers:
        raise UsageError(
            "an iterable dataset distributes its samples among its workers itself",
            remedy=f"Make the loader with num_workers={body.workers}, if the dataset can handle that.",
        )
    if getattr(loader, "next_iter_state", None) is not None:
        raise UsageError(
            "the loader has loaded a state, which a new one would not have",
            remedy="Call apply_plan before load_state_dict.",
        )


def _is_stateful(loader: DataLoader[Any]) -> bool:
    torchdata = sys.modules.get("torchdata.stateful_dataloader")
    return torchdata is not None and type(loader) is torchdata.StatefulDataLoader


def _batching(loader: DataLoader[Any]) -> dict[str, Any]:
    """Arguments that determine which samples form a batch."""
    if isinstance(loader.dataset, IterableDataset):
        return {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if loader.batch_size is None and loader.batch_sampler is not None:
        return {"batch_sampler": loader.batch_sampler}
    return {"batch_size": loader.batch_size, "sampler": loader.sampler, "drop_last": loader.drop_last}


def _making(loader: DataLoader[Any], body: LoaderBody) -> dict[str, Any]:
    """Arguments that determine how batches are made."""
    options = {
        "num_workers": body.workers,
        "collate_fn": loader.collate_fn,
        "pin_memory": loader.pin_memory,
        "pin_memory_device": loader.pin_memory_device,
        "worker_init_fn": loader.worker_init_fn,
        "generator": loader.generator,
        "in_order": loader.in_order,
    }
    if hasattr(loader, "snapshot_every_n_steps"):
        options["snapshot_every_n_steps"] = loader.snapshot_every_n_steps
    if body.workers:
        options |= {
            "prefetch_factor": body.prefetch,
            "persistent_workers": loader.persistent_workers,
            "multiprocessing_context": loader.multiprocessing_context,
            "timeout": loader.timeout,
        }
    return options
