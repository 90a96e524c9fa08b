"""Trains by the patterns named, one after the other, and prints the losses of each to the bit."""

import os
import sys
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from pattern_data import stream, validation, zipped
from pattern_inference import inference
from pattern_loops import lightning, trainer
from pattern_optimizers import adversarial, closure, in_backward
from pattern_parallelism import accumulation, amp, compiled, ddp, fsdp
from pattern_parts import rank
from pattern_profilers import profiled_after, profiled_before, profiled_within

PATTERNS: dict[str, Callable[[int], Iterator[float]]] = {
    pattern.__name__: pattern
    for pattern in (
        accumulation,
        adversarial,
        amp,
        closure,
        compiled,
        ddp,
        fsdp,
        in_backward,
        inference,
        lightning,
        profiled_after,
        profiled_before,
        profiled_within,
        stream,
        trainer,
        validation,
        zipped,
    )
}


def main() -> None:
    steps, *names = sys.argv[1:]
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    for name in names:
        torch.manual_seed(0)
        for number, loss in enumerate(PATTERNS[name](int(steps))):
            # In one write: the other rank writes to the same pipe.
            sys.stdout.write(f"{name} {rank()} {number} {loss.hex()}\n")
            sys.stdout.flush()
    if dist.is_initialized():
        dist.destroy_process_group()
        time.sleep(0.5)  # gloo's threads need Python's lock once more, or PyTorch 2.13 may abort the process


if __name__ == "__main__":
    main()
