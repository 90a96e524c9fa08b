"""The arguments that all jobs share."""

import argparse
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Arguments:
    """How large a job is, and where it reads its samples."""

    hidden: int
    layers: int
    batch: int
    steps: int
    bucket_mb: float
    workers: int
    files: Path
    samples: int
    fp16: bool
    sharded: bool
    compress: str
    seed: int
    sample_ms: float = 0.0
    shared_update: bool = False
    zero: int = 0


def parse(description: str | None, *, hidden: int, layers: int, batch: int) -> Arguments:
    """The command line's arguments; those given here are the job's own defaults."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--hidden", type=int, default=hidden, help="width of the model")
    parser.add_argument("--layers", type=int, default=layers, help="depth of the model")
    parser.add_argument("--batch", type=int, default=batch, help="samples a step and rank")
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps")
    parser.add_argument("--bucket-mb", type=float, default=25.0, help="DDP's gradient bucket in MiB")
    parser.add_argument("--workers", type=int, default=0, help="DataLoader worker processes a rank; 0 is none")
    parser.add_argument("--files", type=Path, required=True, help="folder of samples, one a file; made if missing")
    parser.add_argument("--samples", type=int, default=512, help="how many of them")
    parser.add_argument("--fp16", action="store_true", help="send gradients in half precision")
    parser.add_argument("--sharded", action="store_true", help="shard each child of the model by FSDP2, not DDP")
    parser.add_argument("--compress", default="", help="codec for the gradients, a plan's file, or noop")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the order of samples")
    parser.add_argument(
        "--sample-ms", type=float, default=0.0, help="time that storage takes for each sample, emulated"
    )
    parser.add_argument("--shared-update", action="store_true", help="let each rank update a part of the parameters")
    parser.add_argument(
        "--zero",
        type=int,
        default=0,
        choices=(0, 2, 3),
        help="share gradients (2) and parameters (3) by FSDP2, not DDP",
    )
    return Arguments(**vars(parser.parse_args()))
