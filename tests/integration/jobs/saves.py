"""Saves in every step, each time by another function that was imported by its own name."""

import sys
from io import BytesIO
from pathlib import Path

import torch.distributed as dist
from steps import losses, model_and_optimizer
from torch import save
from torch.distributed.checkpoint import async_save
from torch.distributed.checkpoint.state_dict_saver import save as save_in_shares

folder = Path(sys.argv[1])
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model, optimizer = model_and_optimizer()
for step, _ in enumerate(losses(model, 4)):
    if step == 1:
        save(model.state_dict(), BytesIO())
    elif step == 2:
        save_in_shares(model.state_dict(), checkpoint_id=folder / "shares")
    elif step == 3:
        async_save(model.state_dict(), checkpoint_id=folder / "later").result()
    optimizer.step()
dist.destroy_process_group()
