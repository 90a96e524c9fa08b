"""Learns the energies of molecules with a graph network and DDP."""

import gc

import torch
import torch.distributed as dist
import torch.nn.functional as F
from data import Molecules, Shard, make_loader, make_molecules
from model import GraphNetwork
from torch.nn.parallel import DistributedDataParallel

from benchmarks.diagnosis.jobs.common import leave, read_arguments

arguments = read_arguments(60, needs_files=True)
fault, strength = arguments.fault, arguments.strength
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(arguments.seed)

data = Molecules(make_molecules(arguments.files), fault, strength)
uneven = fault == "big_molecules" and rank == arguments.rank
loader = make_loader(data, Shard(data, rank, world, arguments.seed + rank, uneven, strength))
model = DistributedDataParallel(GraphNetwork(fault=fault, strength=strength))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

# FAULT barriers
if fault == "barriers":
    # Left from the search for a hang.
    linears = [module for module in model.module.modules() if isinstance(module, torch.nn.Linear)]
    for module in linears[: round(strength)]:
        module.register_forward_hook(lambda module, inputs, output: dist.barrier())
# END FAULT


def batches():
    while True:
        yield from loader


for step, batch in zip(range(arguments.steps), batches(), strict=False):
    loss = F.smooth_l1_loss(model(batch), batch.energies)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    # FAULT collect
    if fault == "collect" and step % round(strength) == 0:
        gc.collect()
    # END FAULT
    if step % 20 == 0 and rank == 0:
        print(f"step {step}: loss {loss.item():.3f}")

leave()
