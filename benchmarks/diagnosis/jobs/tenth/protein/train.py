"""Trains a denoiser of protein chains with FSDP2."""

import queue
import threading
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.diagnosis.jobs.common import leave, read_arguments
from benchmarks.diagnosis.jobs.tenth.protein import data
from benchmarks.diagnosis.jobs.tenth.protein.model import Denoiser

BATCH = 4
LEARNING_RATE = 1e-3
CLIP = 1.0
DECAY = 0.99
LOG_EVERY = 20


def loss_of(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss of masked residues and of distances, and the predicted coordinates."""
    logits, coordinates = model(batch["seen"], batch["masked"], batch["noisy"])
    residues = F.cross_entropy(logits, batch["residues"][batch["masked"]])
    true = batch["coordinates"]
    distances = F.smooth_l1_loss(torch.cdist(coordinates, coordinates), torch.cdist(true, true))
    return residues + distances, coordinates.detach()


class Average:
    """Moving average of the parameters, of which each rank holds its shards."""

    def __init__(self, model: torch.nn.Module):
        self.parameters = list(model.parameters())
        self.averages = [self._local(parameter) for parameter in self.parameters]

    def update(self) -> None:
        torch._foreach_lerp_(self.averages, [parameter.to_local().detach() for parameter in self.parameters], 1 - DECAY)

    @staticmethod
    def _local(parameter: torch.Tensor) -> torch.Tensor:
        return parameter.to_local().detach().clone()


# FAULT average
class WholeAverage:
    """Moving average of the whole parameters, ready to be evaluated."""

    def __init__(self, model: torch.nn.Module, share: float):
        named = list(model.named_parameters())
        self.parameters = dict(named[: round(share * len(named))])
        self.averages = {name: parameter.full_tensor().detach().clone() for name, parameter in self.parameters.items()}

    @torch.no_grad()
    def update(self) -> None:
        for name, parameter in self.parameters.items():
            self.averages[name].lerp_(parameter.full_tensor(), 1 - DECAY)


# END FAULT


# FAULT scorer
class Scorer(threading.Thread):
    """Scores predicted chains by lDDT, beside the training."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.waiting: queue.SimpleQueue[tuple[np.ndarray, np.ndarray]] = queue.SimpleQueue()
        self.scores: list[float] = []

    def run(self) -> None:
        while True:
            predicted, true = self.waiting.get()
            self.scores.append(float(np.mean([self.score(predicted, true, place) for place in range(len(true))])))

    @staticmethod
    def score(predicted: np.ndarray, true: np.ndarray, place: int) -> float:
        wanted = np.linalg.norm(true - true[place], axis=-1)
        close = (wanted < 15.0) & (np.arange(len(true)) != place)
        error = np.abs(np.linalg.norm(predicted - predicted[place], axis=-1) - wanted)[close]
        return float(np.mean([(error < limit).mean() for limit in (0.5, 1.0, 2.0, 4.0)])) if close.any() else 0.0


# END FAULT


# FAULT checkpoint
def save(model: torch.nn.Module, optimizer: torch.optim.Optimizer, path: Path) -> None:
    """Save the whole state, from rank 0."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    of_model, of_optimizer = get_state_dict(model, optimizer, options=options)
    if dist.get_rank() == 0:
        torch.save({"model": of_model, "optimizer": of_optimizer}, path)
    dist.barrier()


# END FAULT


def main() -> None:
    options = read_arguments(steps=72, needs_files=True)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed)

    if rank == 0:
        data.write_shards(options.files, options.seed)
    dist.barrier()
    chains = data.Chains(data.write_shards(options.files, options.seed))
    # FAULT shards
    if options.fault == "shards":
        chains.keep(round(options.strength))
    # END FAULT
    sampler = DistributedSampler(chains, world, rank, seed=options.seed, drop_last=True)
    loader = DataLoader(chains, BATCH, sampler=sampler, num_workers=1, persistent_workers=True, drop_last=True)

    model = Denoiser()
    # FAULT pairs
    if options.fault == "pairs":
        model.refreshed = round(options.strength)
    # END FAULT
    mesh = init_device_mesh("cpu", (world,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, foreach=True)
    average = Average(model)
    # FAULT average
    if options.fault == "average":
        average = WholeAverage(model, options.strength)
    # END FAULT
    # FAULT scorer
    scorer = None
    if options.fault == "scorer" and rank == options.rank:
        scorer = Scorer()
        scorer.start()
    # END FAULT

    step = epoch = 0
    while step < options.steps:
        sampler.set_epoch(epoch)
        epoch += 1
        for batch in loader:
            loss, coordinates = loss_of(model, batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()
            average.update()

            step += 1
            # FAULT scorer
            if scorer:
                for one in range(round(options.strength)):
                    scorer.waiting.put((coordinates[one].numpy(), batch["coordinates"][one].numpy()))
            # END FAULT
            # FAULT checkpoint
            if options.fault == "checkpoint" and step % round(options.strength) == 0:
                save(model, optimizer, options.files / "last.pt")
            # END FAULT
            if step % LOG_EVERY == 0:
                total = loss.detach().clone()
                dist.all_reduce(total)
                if rank == 0:
                    print(f"step {step}: loss {total.item() / world:.3f}", flush=True)
            if step == options.steps:
                break
    leave()


if __name__ == "__main__":
    main()
