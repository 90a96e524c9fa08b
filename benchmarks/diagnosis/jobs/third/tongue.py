"""An LSTM language model over a frozen table of words; gradients of two parts of a batch are added up before they are sent.

torchrun --nproc-per-node 2 tongue.py --files /tmp/tongue
"""

import contextlib
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import FileSystemWriter, state_dict_saver
from torch.nn.parallel import DistributedDataParallel

from benchmarks.diagnosis.jobs.common import leave, read_arguments

TABLE, WORDS, WIDTH, HIDDEN = 120_000, 256, 128, 144
PARTS, ROWS, LENGTH = 2, 16, 24


class Tongue(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding.from_pretrained(torch.randn(TABLE, WIDTH), freeze=True)
        self.lstm = nn.LSTM(WIDTH, HIDDEN, num_layers=1, batch_first=True)
        self.word = nn.Linear(HIDDEN, WORDS)

    def forward(self, text):
        states, _ = self.lstm(self.table(text[:, :-1]))
        return nn.functional.cross_entropy(self.word(states).transpose(1, 2), text[:, 1:] % WORDS)


def texts(rows):
    return (torch.randint(TABLE, (rows, 1)) + 7 * torch.arange(LENGTH + 1)) % TABLE


class Training:
    def __init__(self, options):
        self.options = options
        self.lead = dist.get_rank() == 0
        self.net = Tongue()
        self.ddp = DistributedDataParallel(self.net)
        self.optimizer = torch.optim.SGD([p for p in self.net.parameters() if p.requires_grad], lr=0.5, momentum=0.9)
        self.perplexity = math.inf

    def step(self):
        total = torch.zeros(())
        for part in range(PARTS):
            with contextlib.nullcontext() if part == PARTS - 1 else self.ddp.no_sync():
                loss = self.ddp(texts(ROWS)) / PARTS
                loss.backward()
            total += loss.detach()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total

    def run(self):
        folder, period = self.options.files, round(self.options.strength) or 10**9
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(1, self.options.steps + 1):
            loss = self.step()
            if number % period == 0:
                self.between(folder, number)
        return loss.item()

    def between(self, folder, number):
        fault = self.options.fault
        # FAULT resume_point
        if fault == "resume_point" and self.lead:
            with open(folder / "resume.bin", "wb") as stream:
                torch.save({"net": self.ddp.state_dict(), "number": number}, stream)
        # END FAULT
        # FAULT roll
        if fault == "roll" and self.lead:
            self.roll(folder, number % 2)
        # END FAULT
        # FAULT distributed_writer
        if fault == "distributed_writer":
            writer = FileSystemWriter(folder / f"parts-{number % 2}", sync_files=False)
            state_dict_saver.save(self.net.state_dict(), storage_writer=writer)
        # END FAULT
        # FAULT perplexity
        if fault == "perplexity":
            self.perplexity = self.perplexed(14)
        # END FAULT

    # FAULT roll
    def roll(self, folder, generation):
        for name, value in self.net.state_dict().items():
            value.numpy().tofile(folder / f"{name}.{generation}")

    # END FAULT

    # FAULT perplexity
    @torch.no_grad()
    def perplexed(self, count):
        self.net.eval()
        found = math.exp(sum(self.net(texts(ROWS)).item() for _ in range(count)) / count)
        self.net.train()
        return found

    # END FAULT


def main():
    options = read_arguments(steps=64, needs_files=True)
    dist.init_process_group("gloo")
    torch.manual_seed(options.seed + dist.get_rank())
    last = Training(options).run()
    if dist.get_rank() == 0:
        print(f"loss {last:.3f}")
    leave()


if __name__ == "__main__":
    main()
