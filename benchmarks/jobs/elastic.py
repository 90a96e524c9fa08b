"""An elastic job that alternates between assignments of its ESTs. Prints one JSON line: the assignments, and the wall
time of each step by assignment.

    torchrun --nproc-per-node 2 -m benchmarks.jobs.elastic --n-est 8 --schedule '[[[0,1,2,3],[4,5,6,7]], …]' --rounds 3
"""

import argparse
import hashlib
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from benchmarks.jobs.gpt import BYTES, CONTEXT, Block
from esprof.elastic import Assignment, Data, ElasticTrainer, Gradients, Proof
from esprof.elastic.checkpoint.snapshot import training_tensors

SETTLES = 2
"""Steps after a move that are not counted."""


class Text(Dataset[Tensor]):
    """Bytes drawn at random: what a step takes does not depend on them."""

    def __len__(self) -> int:
        return 1 << 16

    def __getitem__(self, index: int) -> Tensor:
        return torch.randint(0, BYTES, (CONTEXT + 1,), generator=torch.Generator().manual_seed(index))


class Gpt(nn.Module):
    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(BYTES, hidden)
        self.blocks = nn.Sequential(*(Block(hidden) for _ in range(layers)))
        self.head = nn.Linear(hidden, BYTES)

    def forward(self, text: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(self.embed(text)))
        return out


def loss(model: nn.Module, text: Tensor) -> Tensor:
    return F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


def digest(trainer: ElasticTrainer) -> str:
    """A hash of parameters, buffers and the optimizer's state."""
    found = hashlib.blake2b()
    for name, tensor in sorted(training_tensors(trainer.state).items()):
        found.update(name.encode() + tensor.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n-est", type=int, default=8)
    parser.add_argument("--schedule", type=json.loads, help="Assignments; by default an even split.")
    parser.add_argument("--steps", type=int, default=20, help="Of each assignment in each round.")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=96)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--bucket-mb", type=float, default=4)
    parser.add_argument("--codecs", type=json.loads, default={}, help="Step -> codec from it on.")
    parser.add_argument("--telemetry")
    parser.add_argument(
        "--digest", type=Path, help="File for the losses of all steps, and a hash of what they came to."
    )
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Gpt(options.hidden, options.layers)
    trainer = ElasticTrainer(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-3),
        loss,
        Data(Text(), batch_size=options.batch),
        options.n_est,
        gradients=Gradients(bucket_mb=options.bucket_mb),
        proof=Proof(prove_every=0),
        telemetry=options.telemetry,
    )
    for step, codec in options.codecs.items():
        trainer.set_codec(codec, int(step))
    schedule = options.schedule or [[list(ests) for ests in trainer.assignment.ests]]
    times: list[list[float]] = [[] for _ in schedule]
    losses: list[tuple[float, ...]] = []
    for turn in range(options.rounds * len(schedule)):
        number = turn % len(schedule)
        if options.schedule:
            trainer.assign(Assignment.of(schedule[number]))
        for step in range(SETTLES + options.steps):
            began = time.perf_counter()
            losses.append(trainer.step().losses)
            if step >= SETTLES:
                times[number].append(1_000 * (time.perf_counter() - began))
    trainer.flush()
    if dist.get_rank() == 0 and options.digest:
        options.digest.write_text(json.dumps({"losses": losses, "state": digest(trainer)}))
    if dist.get_rank() == 0:
        print(json.dumps({"schedule": schedule, "step_ms": times}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
