"""What a process says of itself when it claims to be a rank."""

import os

import torch

from ..shared import identity
from ..shared.torch_features import lacking
from .steps import processors


def whoami(rank: int, world_size: int, process_name: str) -> dict[str, object]:
    """The fields of the row that begins the notes of a rank."""
    device, accelerators = identity.device()
    return {
        "rank": rank,
        "world_size": world_size,
        "host": process_name.rsplit(".", 2)[0],
        "pid": os.getpid(),
        "device": device,
        "accelerators": accelerators,
        "cpus": processors.usable(),
        "cpu_quota": processors.quota(),
        "threads": torch.get_num_threads(),
        "versions": identity.versions(),
        "lacks": lacking(),
    }
