"""A mixture of experts that are spread over the ranks; DDP keeps the other parameters the same."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from data import WORDS, draw_batch, make_text
from model import LanguageModel
from torch.nn.parallel import DistributedDataParallel

from benchmarks.diagnosis.jobs.common import leave, read_arguments

arguments = read_arguments(60, needs_files=True)
fault, strength = arguments.fault, arguments.strength
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()

torch.manual_seed(arguments.seed)
plain = LanguageModel(fault, strength, arguments.rank)
own = plain.of_experts()
DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
    plain, [*own, *(name for name, _ in plain.named_buffers())]
)
model = DistributedDataParallel(plain)
shared = [parameter for name, parameter in plain.named_parameters() if name not in own]
optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3)
text = make_text(arguments.seed)
torch.manual_seed(arguments.seed + 1 + rank)
arguments.files.mkdir(parents=True, exist_ok=True)

for step in range(arguments.steps):
    words, following = draw_batch(text, 12)
    optimizer.zero_grad(set_to_none=True)
    # FAULT by_hand
    if fault == "by_hand":
        # As before DDP was here, and a bit at a time, to save memory.
        F.cross_entropy(plain(words).view(-1, WORDS), following.flatten()).backward()
        for parameter in shared:
            for piece in parameter.grad.view(-1).split(round(strength)):
                dist.all_reduce(piece)
                piece /= world
    # END FAULT
    else:
        loss = F.cross_entropy(model(words).view(-1, WORDS), following.flatten())
        loss.backward()
        if step % 20 == 0 and rank == 0:
            print(f"step {step}: loss {loss.item():.3f}")
    optimizer.step()
    # FAULT route_log
    if fault == "route_log" and rank == arguments.rank:
        # Which expert each token went to.
        with (arguments.files / f"routes-{rank}.csv").open("a" if step else "w") as file:
            for number, layer in enumerate(plain.layers):
                choice, share = layer.experts.choice, layer.experts.share
                for token in range(round(len(choice) * strength)):
                    file.write(f"{step},{number},{token},{choice[token].item()},{share[token].item():.4f}\n")
                file.flush()
                os.fsync(file.fileno())
    # END FAULT

leave()
