"""Distil a teacher of sentences into a smaller student: its classes and its features. Plain DDP, each rank on a core.

torchrun --nproc-per-node 2 train.py --files /tmp/compact
"""

import os
import subprocess
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from nets import CLASSES, WORDS, Encoder
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.diagnosis.jobs.common import leave, read_arguments

BATCH, LENGTH, SENTENCES, HEAT = 24, 32, 1600, 3.0

NEIGHBOUR = """
import os, sys, time
pause_s = float(sys.argv[1]) / 1e3
mother = os.getppid()
while os.getppid() == mother:
    until = time.perf_counter() + 0.02
    while time.perf_counter() < until:
        sum(range(500))
    time.sleep(pause_s)
"""


class Distilled(nn.Module):
    """The student, with a layer that widens its features to the teacher's."""

    def __init__(self, width: int, to: int) -> None:
        super().__init__()
        self.student = Encoder(width, 3, 4)
        self.widen = nn.Linear(width, to)

    def forward(self, sentences: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits, hidden = self.student(sentences)
        return logits, self.widen(hidden)


def soft_loss(said: torch.Tensor, taught: torch.Tensor) -> torch.Tensor:
    return HEAT**2 * F.kl_div((said / HEAT).log_softmax(1), (taught / HEAT).softmax(1), reduction="batchmean")


@torch.no_grad()
def held_out_loss(model: nn.Module, sentences: torch.Tensor, labels: torch.Tensor) -> float:
    model.eval()
    loss = F.cross_entropy(model(sentences)[0], labels).item()
    model.train()
    return loss


def stay_on_core(local_rank: int) -> int:
    cores = sorted(os.sched_getaffinity(0))
    core = cores[local_rank % len(cores)]
    os.sched_setaffinity(0, {core})
    return core


def main() -> None:
    options = read_arguments(64)
    core = stay_on_core(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    fault, strength = options.fault, options.strength
    # FAULT neighbour
    if fault == "neighbour" and rank == options.rank:
        # Somebody else's script was started on the core of one rank.
        subprocess.Popen(["taskset", "-c", str(core), sys.executable, "-c", NEIGHBOUR, str(strength)])
    # END FAULT
    # FAULT crowded
    if fault == "crowded":
        torch.set_num_threads(round(strength))
    # END FAULT

    torch.manual_seed(options.seed)
    teacher = Encoder(128, 4, 4)
    model = DistributedDataParallel(Distilled(80, 128))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    teacher.eval()
    if fault != "taught_teacher":
        teacher.requires_grad_(False)
    sentences = torch.randint(0, WORDS, (SENTENCES, LENGTH))
    labels = sentences.sum(1) % CLASSES
    own = torch.arange(rank, SENTENCES, dist.get_world_size())

    for step in range(options.steps):
        rows = own[torch.randint(0, len(own), (BATCH,))]
        batch, meant = sentences[rows], labels[rows]
        # FAULT taught_teacher
        if fault == "taught_teacher":
            taught, features = teacher(batch)
        # END FAULT
        # FAULT asked_twice
        elif fault == "asked_twice":
            with torch.no_grad():
                taught = teacher(batch)[0]
                features = teacher(batch)[1]
        # END FAULT
        else:
            with torch.no_grad():
                taught, features = teacher(batch)
        said, guessed = model(batch)
        loss = soft_loss(said, taught) + F.cross_entropy(said, meant) + F.mse_loss(guessed, features)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # FAULT roll_call
        if fault == "roll_call":
            if rank == options.rank:
                held_out = held_out_loss(model.module, sentences[: round(strength)], labels[: round(strength)])
                if step % 20 == 0:
                    print(f"{step}: {held_out:.3f}")
            dist.barrier()
        # END FAULT
    if rank == 0:
        print(f"loss {loss.item():.3f}")
    leave()


if __name__ == "__main__":
    main()
