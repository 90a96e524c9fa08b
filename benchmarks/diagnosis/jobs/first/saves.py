"""Fine-tunes a recurrent classifier on a frozen embedding, by DDP, and may save or validate every so many steps.

torchrun --nproc-per-node 2 saves.py --files /tmp/saves
"""

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn, save
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from benchmarks.diagnosis.jobs.common import leave, read_arguments

WORDS, WIDTH, CLASSES = 150_000, 128, 4


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH).requires_grad_(False)
        self.gru = nn.GRU(WIDTH, 160, batch_first=True)
        self.head = nn.Linear(160, CLASSES)

    def forward(self, words):
        states, _ = self.gru(self.embed(words))
        return self.head(states[:, -1])


# FAULT numpy_save
def save_checkpoint(model, folder):
    np.savez(folder / "model.npz", **{name: value.numpy() for name, value in model.state_dict().items()})


# END FAULT


# FAULT evaluation
@torch.no_grad()
def validate(model, loader):
    model.eval()
    right = sum((model(words).argmax(1) == label).sum().item() for words, label in loader)
    model.train()
    return right / len(loader.dataset)


# END FAULT


def main():
    options = read_arguments(steps=64, needs_files=True)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(options.seed)
    words = torch.randint(WORDS, (4000, 32))
    samples = TensorDataset(words, words[:, 0] % CLASSES)
    sampler = DistributedSampler(samples, drop_last=True)
    loader = DataLoader(samples, 16, sampler=sampler, drop_last=True)
    held_out = DataLoader(TensorDataset(words[:640], words[:640, 0] % CLASSES), 32)
    net = Classifier()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=1e-3)
    options.files.mkdir(parents=True, exist_ok=True)
    every = round(options.strength) or 1
    for step, (inputs, labels) in enumerate(loader, start=1):
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        if step % every == 0 and rank == 0:
            # FAULT torch_save
            if options.fault == "torch_save":
                torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, options.files / "last.pt")
            # END FAULT
            # FAULT bare_save
            if options.fault == "bare_save":
                save(net.state_dict(), options.files / "last.pt")
            # END FAULT
            # FAULT safetensors_save
            if options.fault == "safetensors_save":
                save_file(net.state_dict(), options.files / "last.safetensors")
            # END FAULT
            # FAULT numpy_save
            if options.fault == "numpy_save":
                save_checkpoint(net, options.files)
            # END FAULT
        # FAULT evaluation
        if options.fault == "evaluation" and step % every == 0:
            validate(net, held_out)
        # END FAULT
        if step == options.steps:
            break
    if rank == 0:
        print(f"{step} steps, loss {loss.item():.3f}")
    leave()


if __name__ == "__main__":
    main()
