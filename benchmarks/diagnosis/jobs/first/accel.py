"""Trains a classifier of sentences, read from a text file, with Accelerate.

torchrun --nproc-per-node 2 accel.py --files /tmp/accel
"""

import random
import re

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.diagnosis.jobs.common import read_arguments

WORDS = [f"w{number}" for number in range(800)]
LENGTH = 40


class Sentences(Dataset):
    def __init__(self, file):
        self.lines = file.read_text().splitlines()

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, index):
        label, text = self.lines[index].split("\t")
        return torch.tensor([int(word[1:]) for word in text.split()]), int(label)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(len(WORDS), 96)
        layer = nn.TransformerEncoderLayer(96, 4, 384, dropout=0.0, batch_first=True)
        self.encode = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(96, 2)

    def forward(self, words):
        return self.head(self.encode(self.embed(words)).mean(1))


# FAULT slow_python
def count_patterns(lines, times):
    """How often each word follows itself, by regular expression."""
    pattern = re.compile(r"(\bw\d+\b).*\b\1\b")
    return [sum(bool(pattern.search(line)) for line in lines) for _ in range(times)]


# END FAULT


def main():
    options = read_arguments(steps=48, needs_files=True)
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(options.seed)
    file = options.files / "sentences.txt"
    if accelerator.is_main_process and not file.exists():
        rng = random.Random(0)
        texts = (" ".join(rng.choices(WORDS, k=LENGTH)) for _ in range(3000))
        options.files.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(f"{number % 2}\t{text}" for number, text in enumerate(texts)))
    accelerator.wait_for_everyone()
    dataset = Sentences(file)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(dataset, 16, shuffle=True))
    done = 0
    for words, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(words), labels)
        # FAULT slow_python
        if options.fault == "slow_python" and accelerator.process_index == options.rank:
            count_patterns(dataset.lines[:20], round(options.strength))
        # END FAULT
        accelerator.backward(loss)
        optimizer.step()
        done += 1
        if done == options.steps:
            break
    accelerator.print(f"{done} steps, loss {loss.item():.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
