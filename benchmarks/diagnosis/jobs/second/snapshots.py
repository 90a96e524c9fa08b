"""Trains a mixer of patches over a large frozen codebook; keeps snapshots and looks at held-out patches now and then.

torchrun --nproc-per-node 2 snapshots.py --files /tmp/snapshots
"""

import pickle

import safetensors.torch as st
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch import save as dump
from torch.nn.parallel import DistributedDataParallel as DDP

from benchmarks.diagnosis.jobs.common import leave, read_arguments

PATCHES, CODES, WIDTH = 36, 120_000, 160


class MixerBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.across = nn.Sequential(nn.LayerNorm(PATCHES), nn.Linear(PATCHES, 128), nn.GELU(), nn.Linear(128, PATCHES))
        self.within = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256), nn.GELU(), nn.Linear(256, WIDTH))

    def forward(self, x):
        x = x + self.across(x.transpose(1, 2)).transpose(1, 2)
        return x + self.within(x)


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codebook", torch.randn(CODES, WIDTH))
        self.blocks = nn.Sequential(MixerBlock(), MixerBlock(), MixerBlock())
        self.score = nn.Linear(WIDTH, 1)

    def forward(self, codes):
        return self.score(self.blocks(self.codebook[codes]).mean(1)).squeeze(1)


def fresh(rows):
    codes = torch.randint(CODES, (rows, PATCHES))
    return codes, (codes.float().mean(1) / CODES - 0.5) * 10


# FAULT pickle_snapshot
def write_snapshot(net, path):
    arrays = {key: value.detach().numpy() for key, value in net.state_dict().items()}
    with path.open("wb") as stream:
        pickle.dump(arrays, stream)


# END FAULT


# FAULT held_out
def held_out_error(net, chunks):
    with torch.inference_mode():
        parts = [(net(codes) - target).abs().mean() for codes, target in (fresh(48) for _ in range(chunks))]
    return torch.stack(parts).mean().item()


# END FAULT


def snapshot(options, net, optimizer, count):
    where = options.files
    # FAULT renamed_save
    if options.fault == "renamed_save":
        dump([net.state_dict(), optimizer.state_dict(), count], where / f"{count}.pth")
    # END FAULT
    # FAULT safetensors_model
    if options.fault == "safetensors_model":
        st.save_model(net, str(where / "model.safetensors"))
    # END FAULT
    # FAULT pickle_snapshot
    if options.fault == "pickle_snapshot":
        write_snapshot(net, where / "model.pickle")
    # END FAULT


def main() -> None:
    options = read_arguments(steps=64, needs_files=True)
    dist.init_process_group("gloo")
    torch.manual_seed(options.seed)
    options.files.mkdir(parents=True, exist_ok=True)
    net = Mixer()
    ddp = DDP(net, broadcast_buffers=False)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    period = round(options.strength) or options.steps + 1
    count = 0
    while count < options.steps:
        codes, target = fresh(20)
        loss = torch.nn.functional.huber_loss(ddp(codes), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        count += 1
        if count % period:
            continue
        if dist.get_rank() == 0:
            snapshot(options, net, optimizer, count)
        # FAULT all_ranks_dcp
        if options.fault == "all_ranks_dcp":
            dcp.save({"net": net.state_dict()}, checkpoint_id=options.files / f"dcp-{count}")
        # END FAULT
        # FAULT held_out
        if options.fault == "held_out":
            net.eval()
            held_out_error(net, 8)
            net.train()
        # END FAULT
    if dist.get_rank() == 0:
        print(f"{count} steps: {loss.item():.4f}")
    leave()


if __name__ == "__main__":
    main()
