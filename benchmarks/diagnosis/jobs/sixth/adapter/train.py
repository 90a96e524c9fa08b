"""Fine-tunes the adapters of a frozen decoder, all of it sharded with FSDP2."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from data import Instructions, make_loader, make_texts
from model import Adapted, Decoder
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from benchmarks.diagnosis.jobs.common import leave, read_arguments

arguments = read_arguments(60, needs_files=True)
fault, strength = arguments.fault, arguments.strength
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(arguments.seed)

mesh = init_device_mesh("cpu", (world,))
model = Decoder(fault=fault, strength=strength)
for layer in model.layers:
    # FAULT wrap_all
    if fault == "wrap_all":
        adapted = [module for module in layer.modules() if isinstance(module, Adapted)]
        for module in adapted[: round(strength)]:
            fully_shard(module, mesh=mesh)
    # END FAULT
    fully_shard(layer, mesh=mesh, reshard_after_forward=False)
fully_shard(model, mesh=mesh, reshard_after_forward=False)
trained = [parameter for name, parameter in model.named_parameters() if name.endswith((".down", ".up"))]
optimizer = torch.optim.AdamW(trained, lr=1e-3)

seen = fault if fault != "uncached" or rank == arguments.rank else "none"
loader = make_loader(Instructions(make_texts(arguments.files), seen, strength), arguments.seed)


def batches():
    epoch = 0
    while True:
        loader.sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


for step, tokens in zip(range(arguments.steps), batches(), strict=False):
    scores = model(tokens[:, :-1])
    loss = F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    # FAULT save_all
    if fault == "save_all" and step % round(strength) == 0:
        # The frozen weights too, though they are those that it began with.
        state = {name: parameter.full_tensor() for name, parameter in model.state_dict().items()}
        if rank == 0:
            torch.save(state, arguments.files / f"step-{step % 2}.pt")
        dist.barrier()
    # END FAULT
    if step % 20 == 0 and rank == 0:
        print(f"step {step}: loss {loss.item():.3f}")

leave()
