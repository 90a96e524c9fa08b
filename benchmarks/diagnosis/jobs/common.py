"""What the jobs of all sets share: their arguments, and how they end.

They find this module by PYTHONPATH; in the project's folder:

    PYTHONPATH=. torchrun --nproc-per-node 2 benchmarks/diagnosis/jobs/first/gpt.py
"""

import argparse
import time
from pathlib import Path

import torch.distributed as dist


def read_arguments(steps: int, *, needs_files: bool = False) -> argparse.Namespace:
    """Those that a case is called with; `steps` is what the job takes by itself, and files is None where it needs none."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=Path, required=needs_files)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fault", default="none")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--strength", type=float, default=0)
    return parser.parse_args()


def leave() -> None:
    """End the process group; gloo may abort a process that ends right after its last transfer."""
    dist.destroy_process_group()
    time.sleep(0.5)
