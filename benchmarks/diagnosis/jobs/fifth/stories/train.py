"""Tell stories: a language model, gradients of two micro-batches accumulated. FSDP2.

torchrun --nproc-per-node 2 train.py --files /tmp/stories
"""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from model import LENGTH, WORDS, Teller
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from benchmarks.diagnosis.jobs.common import leave, read_arguments

BATCH, MICRO, ROWS = 3, 2, 400


def rows_of(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Words (ROWS, LENGTH + 1), and which of the stories packed into a row each is of."""
    chance = torch.Generator().manual_seed(rank)
    words = torch.randint(1, WORDS, (ROWS, LENGTH + 1), generator=chance)
    words[:, 1::2] = (words[:, ::2][:, : words[:, 1::2].shape[1]] * 7) % WORDS
    return words, (torch.rand(words.shape, generator=chance) < 0.05).cumsum(1)


# FAULT whole_clip
def clip(model: nn.Module, limit: float) -> float:
    """Parameter for parameter, as before the model was sharded."""
    total = 0.0
    for parameter in model.parameters():
        whole = parameter.grad.full_tensor()
        total += whole.norm().item() ** 2
    factor = min(1.0, limit / (total**0.5 + 1e-6))
    for parameter in model.parameters():
        parameter.grad.mul_(factor)
    return total**0.5


# END FAULT


# FAULT keepsake
def keep(model: nn.Module, optimizer: torch.optim.Optimizer, file: str) -> None:
    """All of it, gathered, to go on from on any number of ranks."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights, state = get_state_dict(model, optimizer, options=options)
    if dist.get_rank() == 0:
        torch.save({"model": weights, "optimizer": state}, file + ".part")
        with open(file + ".part", "rb") as written:
            os.fsync(written.fileno())
        os.replace(file + ".part", file)
    dist.barrier()


# END FAULT


def main() -> None:
    options = read_arguments(48, needs_files=True)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    fault, strength = options.fault, options.strength
    options.files.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(options.seed)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Teller(fault, strength)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    words, story = rows_of(rank)

    for step in range(options.steps):
        optimizer.zero_grad()
        for number in range(MICRO):
            rows = torch.randint(0, ROWS, (BATCH,))
            is_last = number == MICRO - 1
            # FAULT eager
            if fault == "eager":
                is_last = True
            # END FAULT
            model.set_requires_gradient_sync(is_last)
            said = model(words[rows, :-1], story[rows, :-1])
            loss = F.cross_entropy(said.flatten(0, 1), words[rows, 1:].flatten()) / MICRO
            loss.backward()
        # FAULT whole_clip
        if fault == "whole_clip":
            clip(model, 1.0)
        # END FAULT
        else:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        # FAULT keepsake
        if fault == "keepsake" and step % round(strength) == 0:
            keep(model, optimizer, str(options.files / "latest.pt"))
        # END FAULT
    if rank == 0:
        print(f"loss {loss.item() * MICRO:.3f}")
    leave()


if __name__ == "__main__":
    main()
