"""The GPT as a pipeline: each rank has one stage of its blocks, or several in turn, run by torch.distributed.pipelining."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from benchmarks.jobs.gpt import BYTES, CONTEXT, Block
from benchmarks.jobs.loop import worker

SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe, "interleaved": ScheduleInterleaved1F1B}


class Part(nn.Module):
    """Blocks that follow each other; the first part embeds bytes (batch, context), the last gives logits as `GPT` does."""

    def __init__(self, hidden: int, blocks: int, is_first: bool, is_last: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(BYTES, hidden) if is_first else None
        self.blocks = nn.Sequential(*(Block(hidden) for _ in range(blocks)))
        self.head = nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, BYTES)) if is_last else None

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.blocks(x if self.embed is None else self.embed(x))
        return out if self.head is None else self.head(out).transpose(1, 2)


def train(schedule: str, stages: list[int], microbatches: int, hidden: int, batch: int, steps: int) -> None:
    """`stages` are the numbers of blocks of all stages, which the ranks take in turn."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    last = len(stages) - 1
    parts = {at: Part(hidden, stages[at], at == 0, at == last) for at in range(rank, len(stages), ranks)}
    mine = [PipelineStage(part, at, len(stages), torch.device("cpu")) for at, part in parts.items()]
    taken = mine if schedule == "interleaved" else mine[0]
    pipeline = SCHEDULES[schedule](taken, microbatches, loss_fn=F.cross_entropy)  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW([weight for part in parts.values() for weight in part.parameters()])
    text = torch.randint(BYTES, (batch, CONTEXT + 1))
    inputs = [text[:, :-1]] if 0 in parts else []
    target = text[:, 1:] if last in parts else None
    for _ in range(steps):
        optimizer.zero_grad()
        pipeline.step(*inputs, target=target)
        optimizer.step()


def numbers(text: str) -> list[int]:
    return [int(one) for one in text.split("+")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--schedule", choices=SCHEDULES, default="1f1b")
    parser.add_argument("--stages", type=numbers, default="4+4+4", help="blocks of each stage")
    parser.add_argument("--microbatches", type=int, default=6, help="of a step")
    parser.add_argument("--hidden", type=int, default=192)
    parser.add_argument("--batch", type=int, default=24, help="samples a step")
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps")
    options = parser.parse_args()
    with worker(seed=0):
        train(**vars(options))


if __name__ == "__main__":
    main()
