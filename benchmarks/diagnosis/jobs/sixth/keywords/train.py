"""Learns to spot spoken words with 1-D convolutions on the waveform; one rank, whose loader has two workers."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from data import WORDS, Clips, make_clips, make_loader

from benchmarks.diagnosis.jobs.common import read_arguments

arguments = read_arguments(60, needs_files=True)
torch.set_num_threads(1)
torch.manual_seed(arguments.seed)


def stage(inputs: int, outputs: int, width: int, stride: int) -> nn.Sequential:
    conv = nn.Conv1d(inputs, outputs, width, stride, padding=width // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm1d(outputs), nn.ReLU())


model = nn.Sequential(
    stage(1, 32, 80, 16),
    stage(32, 32, 3, 1),
    nn.MaxPool1d(4),
    stage(32, 64, 3, 1),
    stage(64, 64, 3, 1),
    nn.MaxPool1d(4),
    stage(64, 128, 3, 1),
    nn.AdaptiveAvgPool1d(1),
    nn.Flatten(),
    nn.Linear(128, WORDS),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

paths = make_clips(arguments.files)
held_out, training = paths[:96], paths[96:]
loader = make_loader(training, arguments.seed, arguments.fault, arguments.strength)
held_out_clips = Clips(held_out)


def batches():
    while True:
        yield from loader


@torch.no_grad()
def validate() -> float:
    model.eval()
    right = 0
    for start in range(0, len(held_out), 16):
        items = [held_out_clips[index] for index in range(start, min(start + 16, len(held_out)))]
        scores = model(torch.stack([clip for clip, _ in items]))
        right += int((scores.argmax(1) == torch.tensor([label for _, label in items])).sum())
    model.train()
    return right / len(held_out)


better = 0
for step, (clips, labels) in zip(range(arguments.steps), batches(), strict=False):
    scores = model(clips)
    loss = F.cross_entropy(scores, labels)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    # FAULT rank_of_truth
    if arguments.fault == "rank_of_truth":
        for row in range(len(labels)):
            truth = labels[row].item()
            for word in range(round(arguments.strength)):
                if scores[row, word].item() > scores[row, truth].item():
                    better += 1
    # END FAULT
    # FAULT validate
    if arguments.fault == "validate" and step % round(arguments.strength) == 0:
        print(f"step {step}: {validate():.2f} of the held out words are right")
    # END FAULT
    if step % 20 == 0:
        print(f"step {step}: loss {loss.item():.3f}")

print(f"at the end {validate():.2f} of the held out words are right")
