"""Fine-tunes adapters of a small GPT on talks, sharded by FSDP2.

torchrun --nproc-per-node 2 train.py --files /tmp/assist
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from data import PAD, Talks
from model import Assistant
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.diagnosis.jobs.common import leave, read_arguments

BATCH = 8


def is_adapter(name):
    return ".up." in name or ".down." in name


def main():
    options = read_arguments(steps=60, needs_files=True)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    talks = Talks(BATCH, rank, ranks, options)
    # Each rank takes the same numbers, whose talks are divided among the ranks.
    sampler = DistributedSampler(talks, num_replicas=1, rank=0, seed=options.seed)
    loader = DataLoader(talks, sampler=sampler, batch_size=None, num_workers=1, persistent_workers=True)
    model = Assistant(options)
    if options.fault != "no_freeze":
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(is_adapter(name))
    mesh = init_device_mesh("cpu", (ranks,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    adapters = [parameter for name, parameter in model.named_parameters() if is_adapter(name)]
    optimizer = torch.optim.AdamW(adapters, lr=1e-3, foreach=True)
    done = 0
    while done < options.steps:
        for tokens in loader:
            optimizer.zero_grad()
            # FAULT no_freeze
            if options.fault == "no_freeze":
                model.zero_grad()
            # END FAULT
            said = model(tokens[:, :-1])
            loss = F.cross_entropy(said.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=PAD)
            loss.backward()
            # FAULT one_by_one
            if options.fault == "one_by_one":
                for adapter in adapters:
                    nn.utils.clip_grad_norm_(adapter, 1.0)
            # END FAULT
            else:
                nn.utils.clip_grad_norm_(adapters, 1.0)
            optimizer.step()
            # FAULT whole_model
            if options.fault == "whole_model" and done % round(options.strength) == 0:
                whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
                if rank == 0:
                    torch.save(whole, options.files / "model.pt")
            # END FAULT
            done += 1
            if done == options.steps:
                break
    if rank == 0:
        print(f"{done} steps, loss {loss.item():.3f}")
    leave()


if __name__ == "__main__":
    main()
