"""What PyTorch's own Flight Recorders know of this process's collectives."""

import torch.distributed as dist

_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
"""One for all backends, and NCCL's, which builds without CUDA lack."""


def dumps(*, include_calls: bool) -> list[bytes]:
    """What each of them tells, as JSON, that for all backends first; nothing where there is no process group.

    A call names the process group, the number in it, the operation, its sizes, and when it was enqueued. NCCL's say when
    they started and ended, too. There are at most TORCH_FR_BUFFER_SIZE (2000). Without them it is told how far each group
    has come.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return []
    from torch._C import _distributed_c10d as c10d

    return [getattr(c10d, name)(include_calls, False) for name in _DUMPS if hasattr(c10d, name)]
