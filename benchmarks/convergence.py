"""How far the loss of a small GPT is from uncompressed training's, by codec.

    torchrun --nproc-per-node 2 -m benchmarks.convergence [--steps 1000] [--seeds 3] [--codecs bf16 int8 … or plan.json]

Prints a JSON line for each: the relative gap of the mean loss of the last quarter of the steps, with its 95 % interval over
the seeds. All trainings of a seed begin with the same weights and take the same batches.
"""

import argparse
from collections.abc import Iterator
from statistics import mean

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from benchmarks.figures import show
from benchmarks.jobs.gpt import CONTEXT, GPT, sources
from benchmarks.jobs.loop import compression_of, steps, worker
from esprof.elastic.compress import compress
from esprof.elastic.compress.canary import canary
from esprof.elastic.compress.hook import How

BATCH = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--codecs", nargs="+", default=["bf16", "int8", "int4", "sign", "powersgd:4", "topk:0.1"])
    options = parser.parse_args()
    torch.set_num_threads(1)

    def train(how: How | None, seed: int) -> Iterator[float]:
        torch.manual_seed(seed)
        model = DistributedDataParallel(GPT(hidden=64, layers=2), bucket_cap_mb=0.25)
        compression = None if how is None else compress(model, how)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        yield from steps(batches(seed, options.steps), model, optimizer, F.cross_entropy)
        if compression is not None:
            compression.close()

    with worker(0):
        for codec in options.codecs:
            found = canary(train, compression_of(codec), seeds=range(options.seeds))
            if dist.get_rank() == 0:
                low, high = (100 * end for end in found.interval)
                context = {
                    "codec": codec,
                    "low_pct": low,
                    "high_pct": high,
                    "steps": found.steps,
                    "loss": found.compressed,
                    "loss_fp32": found.plain,
                }
                show("convergence_gap", 100 * mean(found.gaps), "%", context)


def batches(seed: int, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Bytes (batch, context) of the standard library's sources, and the byte that follows each; each rank has others."""
    text = torch.frombuffer(bytearray(sources()), dtype=torch.uint8).long()
    random = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    for _ in range(count):
        begins = torch.randint(len(text) - CONTEXT, (BATCH,), generator=random)
        windows = torch.stack([text[begin : begin + CONTEXT + 1] for begin in begins.tolist()])
        yield windows[:, :-1], windows[:, 1:]


if __name__ == "__main__":
    main()
