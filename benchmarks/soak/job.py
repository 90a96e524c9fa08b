"""A tiny elastic job for the soak: `job.py FOLDER KIND STEPS`.

`ddp` trains a network with BatchNorm and dropout, `gan` two networks whose losses alternate, `distillation` a network by
a teacher that is a moving average of it. FOLDER gets checkpoints, the Run (both in `disk`) and `notes.jsonl`: a line with a
hash of parameters, buffers and optimizer states for each NOTED_EVERY steps and the last. `alone` trains the same in one
process without checkpoints, telemetry and plans.
"""

import copy
import json
import mmap
import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from esprof.elastic import Checkpoint, Data, Drain, ElasticTrainer, Gradients, Placement, Proof, Updates
from tests.cases.elastic import state_hash

N_EST = 4
NOTED_EVERY = 100
SAVED_EVERY = 25
CLOCK = struct.Struct("q")
"""The file `clock`: ns by which the clock of the ranks is wrong."""
STEP = struct.Struct("q")
"""The file `step`: the next step of the job."""


class Points(Dataset):
    """Points of three kinds, with noise from the global generator."""

    def __len__(self) -> int:
        return 203

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        kind = index % 3
        place = torch.randn(8, generator=torch.Generator().manual_seed(kind))
        return place + 0.5 * torch.randn(8), kind


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))


def _ddp() -> dict:
    model = _net()
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), 1e-3),
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
    }


class _Gan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
        self.critic = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, count: int) -> Tensor:
        return self.generator(torch.randn(count, 4))


def _of_critic(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    real = batch[0]
    judged = model.critic(torch.cat([real, model(len(real)).detach()])).squeeze(1)
    return F.binary_cross_entropy_with_logits(judged, torch.cat([torch.ones(len(real)), torch.zeros(len(real))]))


def _of_generator(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    judged = model.critic(model(len(batch[0]))).squeeze(1)
    return F.binary_cross_entropy_with_logits(judged, torch.ones(len(batch[0])))


def _gan() -> dict:
    model = _Gan()
    optimizers = [torch.optim.Adam(part.parameters(), 1e-3) for part in (model.critic, model.generator)]
    return {"model": model, "optimizer": optimizers, "loss_fn": [_of_critic, _of_generator]}


class _Teacher:
    """A moving average of a model, which checkpoints keep."""

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False).eval()

    def follow(self, model: nn.Module) -> None:
        with torch.no_grad():
            for mine, its in zip(self.model.parameters(), model.parameters(), strict=True):
                mine.lerp_(its, 0.01)

    def state_dict(self) -> dict:
        return self.model.state_dict()

    def load_state_dict(self, state: dict) -> None:
        self.model.load_state_dict(state)


def _distillation() -> dict:
    model = _net()
    teacher = _Teacher(model)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        points, kinds = batch
        said = model(points)
        return F.cross_entropy(said, kinds) + F.mse_loss(said, teacher.model(points))

    updates = Updates(state={"teacher": teacher}, after_step=lambda _: teacher.follow(model))
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), 1e-3),
        "loss_fn": loss,
        "updates": updates,
    }


KINDS = {"ddp": _ddp, "gan": _gan, "distillation": _distillation}


def trainer(kind: str, folder: Path | None) -> ElasticTrainer:
    """The trainer of a job; without a folder that of one undisturbed process."""
    torch.manual_seed(0)
    made = KINDS[kind]()
    around: dict = {}
    if folder is not None:
        run = folder / "disk" / "run"
        around = {
            "checkpoint": Checkpoint(folder / "disk" / "checkpoints", every=SAVED_EVERY),
            "telemetry": run,
            "placement": Placement(plan=run / "plan.json"),
            "drain": Drain(),
        }
    return ElasticTrainer(
        made.pop("model"),
        made.pop("optimizer"),
        made.pop("loss_fn"),
        Data(Points(), batch_size=4),
        N_EST,
        gradients=Gradients(bucket_mb=0.001),
        proof=Proof(threads=1),
        **made,
        **around,
    )


def bits(trained: ElasticTrainer) -> str:
    """A hash of parameters, buffers and the states of all optimizers."""
    return "".join(state_hash(trained.state.model, optimizer) for optimizer in trained.state.optimizers)


def with_wrong_clock(folder: Path) -> None:
    """Make `time.time` and `time.time_ns` of this process as wrong as the file `clock` says."""
    with (folder / "clock").open("rb") as file:
        off = mmap.mmap(file.fileno(), CLOCK.size, access=mmap.ACCESS_READ)
    time_ns = time.time_ns
    time.time_ns = lambda: time_ns() + CLOCK.unpack(off)[0]
    time.time = lambda: time.time_ns() / 1e9


def train(
    trained: ElasticTrainer, steps: int, notes: TextIO, tell: Callable[[int], object] = lambda step: None
) -> None:
    """Train to the end. `notes` gets the bits, and `tell` the number of the next step."""
    while trained.next_step < steps:
        trained.step()
        tell(trained.next_step)
        if trained.next_step % NOTED_EVERY == 0 or trained.next_step == steps:
            notes.write(json.dumps([trained.next_step, bits(trained)]) + "\n")
            notes.flush()
    trained.close()


def alone(folder: Path, kind: str, steps: int) -> None:
    """Train as one process that nothing befalls."""
    with (folder / "alone.jsonl").open("w") as notes:
        train(trainer(kind, None), steps, notes)


def rank(folder: Path, kind: str, steps: int) -> None:
    """Train as one rank of the default group, which is destroyed at the end."""
    with_wrong_clock(folder)
    trained = trainer(kind, folder)
    if dist.get_rank() == 0:
        with (folder / "step").open("r+b") as file, (folder / "notes.jsonl").open("a") as notes:
            shown = mmap.mmap(file.fileno(), STEP.size)
            train(trained, steps, notes, lambda step: shown.__setitem__(slice(None), STEP.pack(step)))
    else:
        with open(os.devnull, "w") as nothing:
            train(trained, steps, nothing)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    dist.init_process_group("gloo")
    rank(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    time.sleep(0.5)  # gloo may abort a process that ends right after its last collective.


if __name__ == "__main__":
    main()
