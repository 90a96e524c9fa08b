"""Trains a small language model; with DistributedDataParallel where there are several ranks."""

import math
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.gpu.jobs.common import Options, batches, carry_out, loss_of, network, parser, ranks, together

PASSES = 16
"""How often a step goes over the tensor that `--filter` asks for."""


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--filter", type=int, default=0, help="elements that each step takes the arc tangent of")
    arguments.add_argument("--unsynced", action="store_true", help="do not wait for each step's loss")
    arguments.add_argument("--bucket-mb", type=float, default=25.0, help="DDP's gradient bucket in MiB")
    arguments.add_argument("--half", action="store_true", help="compute in bfloat16")
    options = arguments.parse_args()
    with together():
        carry_out("train", steps(options), options)


def steps(options: Options) -> Iterator[float]:
    """Yields each step's loss, or NaN where nobody waits for it."""
    model = network(options).to(torch.bfloat16 if options.half else torch.float32)
    if ranks() > 1:
        model = spread(model, options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    filtered = torch.ones(options.filter, device=options.device)
    for tokens in batches(options):
        for _ in range(PASSES if options.filter else 0):
            filtered.atan_()
        optimizer.zero_grad()
        loss = loss_of(model, tokens.to(options.device, non_blocking=True))
        loss.backward()
        optimizer.step()
        yield math.nan if options.unsynced else loss.item()


def spread(model: nn.Module, options: Options) -> nn.Module:
    devices = [0] if options.device == "cuda" else None
    return DistributedDataParallel(model, device_ids=devices, bucket_cap_mb=options.bucket_mb)


if __name__ == "__main__":
    main()
