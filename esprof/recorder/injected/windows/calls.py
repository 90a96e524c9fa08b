"""What PyTorch's own Flight Recorders know of this process's collectives."""

import torch.distributed as dist

from ...shared.torch_features import flight_dumps


def dumps(*, include_calls: bool) -> list[bytes]:
    """The dump of each Flight Recorder, as JSON, that of all backends first; none where there is no process group.

    A call names the process group, the number in it, the operation, its sizes, and when it was enqueued; NCCL's calls also
    tell when they started and ended. A dump has the latest TORCH_FR_BUFFER_SIZE (2000) calls; without `include_calls` it
    has none, and tells how far each process group has come.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return []
    return [dump(include_calls, False) for dump in flight_dumps()]
