"""Trains under `esprof.record` in its own code: into the run that its first argument names."""

import os
import sys
import time

import torch
import torch.distributed as dist
from pattern_parallelism import ddp
from pattern_parts import rank

import esprof


def main() -> None:
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    with esprof.record(sys.argv[1], skip=2, warmup=1, steps=6, stack_steps=0):
        for number, loss in enumerate(ddp(12)):
            sys.stdout.write(f"ddp {rank()} {number} {loss.hex()}\n")
            sys.stdout.flush()
    esprof.step()
    if dist.is_initialized():
        dist.destroy_process_group()
        time.sleep(0.5)  # gloo's threads need Python's lock once more, or PyTorch 2.13 may abort the process


if __name__ == "__main__":
    main()
