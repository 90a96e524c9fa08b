"""What PyTorch's own Flight Recorders know of this process's collectives."""

import torch.distributed as dist

_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
"""Functions of torch that dump a Flight Recorder: that of all backends, and NCCL's, which builds without CUDA lack."""


def dumps(*, include_calls: bool) -> list[bytes]:
    """The dump of each Flight Recorder, as JSON, that of all backends first; none where there is no process group.

    A call names the process group, the number in it, the operation, its sizes, and when it was enqueued; NCCL's calls also
    tell when they started and ended. A dump has the latest TORCH_FR_BUFFER_SIZE (2000) calls; without `include_calls` it
    has none, and tells how far each process group has come.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return []
    from torch._C import _distributed_c10d as c10d

    return [getattr(c10d, name)(include_calls, False) for name in _DUMPS if hasattr(c10d, name)]
