"""Recognise phonemes in short utterances: LSTMs and CTC. One process.

python train.py --files /tmp/phonemes
"""

import gc
import random
import subprocess
import sys

import torch
import torch.nn.functional as F
from model import BANKS, PHONEMES, Recogniser
from torch.nn.utils.rnn import pad_sequence

from benchmarks.diagnosis.jobs.common import read_arguments

BATCH, UTTERANCES = 20, 600
COLLECTOR = """
import sys, time
pause_s = float(sys.argv[1]) / 1e3
while sys.stdin.buffer.read1(4096):
    time.sleep(pause_s)
"""


def utterances(seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Frames and phonemes of each, by length."""
    chance = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(UTTERANCES):
        length = int(torch.randint(60, 120, (1,), generator=chance))
        frames = torch.randn(length, BANKS, generator=chance)
        found.append((frames, torch.randint(1, PHONEMES, (length // 8,), generator=chance)))
    return sorted(found, key=lambda one: len(one[0]))


def batches(data, seed: int, fault: str, limit: int):
    """Utterances of about one length in each batch; batches by chance."""
    order = list(range(0, UTTERANCES, BATCH))
    chance = random.Random(seed)
    while True:
        chance.shuffle(order)
        for first in order:
            frames, phonemes = zip(*data[first : first + BATCH], strict=True)
            lengths = torch.tensor([len(one) for one in frames])
            padded = pad_sequence(frames, batch_first=True)
            # FAULT pad_to_limit
            if fault == "pad_to_limit":
                padded = F.pad(padded, (0, 0, 0, limit - padded.shape[1]))
            # END FAULT
            yield padded, lengths, torch.cat(phonemes), torch.tensor([len(one) for one in phonemes])


# FAULT error_rate
def edit_distance(said: list[int], meant: list[int]) -> int:
    row = list(range(len(meant) + 1))
    for i, one in enumerate(said, start=1):
        last, row[0] = row[0], i
        for j, other in enumerate(meant, start=1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (one != other))
    return row[-1]


def error_rate(
    scores: torch.Tensor, lengths: torch.Tensor, targets: torch.Tensor, target_lengths: torch.Tensor, tries: int
) -> float:
    """Of the best of some tries, each drawn by the scores."""
    wrong, at = 0, 0
    for number in range(len(scores)):
        meant = targets[at : at + int(target_lengths[number])].tolist()
        at += len(meant)
        distances = []
        for drawn in scores[number, : lengths[number]].exp().multinomial(tries, replacement=True).T.tolist():
            said = [one for one, before in zip(drawn, [0, *drawn], strict=False) if one not in (0, before)]
            distances.append(edit_distance(said, meant))
        wrong += min(distances)
    return wrong / max(1, at)


# END FAULT


def main() -> None:
    options = read_arguments(56)
    torch.set_num_threads(1)  # Its operations are small.
    torch.manual_seed(options.seed)
    fault = options.fault
    data = utterances(options.seed)
    model = Recogniser(fault)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    collector = None
    if fault == "slow_share":
        # The log goes to a share that takes 4 KiB at a time, and takes its time.
        command = [sys.executable, "-c", COLLECTOR, str(options.strength)]
        collector = subprocess.Popen(command, stdin=subprocess.PIPE, pipesize=4096, text=True)

    for step, batch in enumerate(batches(data, options.seed, fault, round(options.strength))):
        if step == options.steps:
            break
        frames, lengths, targets, target_lengths = batch
        scores, lengths = model(frames, lengths)
        loss = F.ctc_loss(scores.transpose(0, 1), targets, lengths, target_lengths, zero_infinity=True)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        # FAULT error_rate
        if fault == "error_rate":
            errors = error_rate(scores.detach(), lengths, targets, target_lengths, round(options.strength))
            print(f"{step}: errors {errors:.3f}")
        # END FAULT
        # FAULT slow_share
        if collector:
            surest, best = scores.detach().exp().max(2)
            print(step, loss.item(), surest.tolist(), best.tolist(), file=collector.stdin, flush=True)
        # END FAULT
        # FAULT tidy
        if fault == "tidy" and step % round(options.strength) == 0:
            gc.collect()
        # END FAULT
    print(f"loss {loss.item():.3f}")
    if collector:
        collector.communicate()


if __name__ == "__main__":
    main()
