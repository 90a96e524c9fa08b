"""Which reducer a job has."""

from typing import Literal

import torch.distributed as dist
from torch._C._distributed_c10d import _DEFAULT_FIRST_BUCKET_BYTES, HashStore, Store

from esprof.elastic.reduce.layout import Layout
from esprof.elastic.reduce.naive import NaiveReducer
from esprof.elastic.reduce.ring import VirtualRingReducer
from esprof.elastic.reduce.stash import Stash
from esprof.elastic.reduce.tree_reducer import Reducer, TreeReducer
from esprof.elastic.runtime.transport import Transport

Reduction = Literal["tree", "ring", "all-reduce"]
"""How gradients are added: by `TreeReducer`, `VirtualRingReducer` or `NaiveReducer`."""

_DDP_BUCKET_MB = 25


def bucket_bytes(bucket_mb: float | None) -> int:
    """Size of a bucket in bytes, from MiB. None stands for the default, as with `DistributedDataParallel`."""
    return int((_DDP_BUCKET_MB if bucket_mb is None else bucket_mb) * (1 << 20))


def reducer(
    kind: Reduction,
    layout: Layout,
    transport: Transport,
    n_est: int,
    bucket_mb: float | None,
    *,
    find_unused: bool = False,
) -> Reducer:
    match kind:
        case "tree":
            return TreeReducer(layout, transport, n_est, Stash.on(layout.device))
        case "ring":
            first = _DEFAULT_FIRST_BUCKET_BYTES if bucket_mb is None else bucket_bytes(bucket_mb)
            return VirtualRingReducer(layout, transport, n_est, _store(), [first, bucket_bytes(bucket_mb)], find_unused)
        case "all-reduce":
            return NaiveReducer(layout, transport, n_est)


def _store() -> Store:
    """The store by which the job's processes have found each other; a new one for a job of one process."""
    if dist.is_initialized():
        return dist.distributed_c10d._get_default_store()
    return HashStore()
