"""Rank, name, device, versions and peak memory of this process."""

import os
import platform
import resource
import socket
import time

import torch
import torch.distributed as dist

_LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
"""Variables in which torchrun, MPI and Slurm pass the rank and the world size."""


def rank_and_world() -> tuple[int, int]:
    """Global rank and world size: from the default process group, else from the launcher's variables, else 0 of 1."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    for rank, world in _LAUNCHERS:
        if rank in os.environ and world in os.environ:
            return int(os.environ[rank]), int(os.environ[world])
    return 0, 1


def process_name() -> str:
    """A name that is unique among the processes of the job on all hosts, including later ones."""
    return f"{socket.gethostname()}.{os.getpid()}.{time.time_ns()}"


def device() -> tuple[str, int]:
    """Name of the accelerator that this process uses, or of its CPU, and the number of visible accelerators."""
    if torch.cuda.is_initialized():
        return torch.cuda.get_device_name(), torch.cuda.device_count()
    return cpu_model(), 0


def versions() -> dict[str, str]:
    cuda = {"cuda": torch.version.cuda} if torch.version.cuda else {}
    return {"python": platform.python_version(), "torch": torch.__version__} | cuda


def peak_memory() -> tuple[int, str]:
    """Peak memory so far in bytes, and its source: `cuda` (the CUDA allocator), or `rss` (the resident set) without CUDA."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated(), "cuda"
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "rss"


def cpu_model() -> str:
    """Model name of the processor; its architecture if the name is unknown."""
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
