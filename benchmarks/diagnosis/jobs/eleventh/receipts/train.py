"""Trains a recogniser of text on pictures of receipts: a CNN, a transformer encoder and CTC, by DDP on two ranks."""

import math
from collections import defaultdict
from difflib import SequenceMatcher

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from benchmarks.diagnosis.jobs.common import leave, read_arguments
from benchmarks.diagnosis.jobs.eleventh.receipts import data

WIDTH = 128
BATCH = 8
CLASSES = len(data.ALPHABET) + 1
LOG_EVERY = 20


def convolution(inputs, outputs, stride):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            convolution(1, 16, 2),
            convolution(16, 32, 2),
            convolution(32, 64, (2, 1)),
            convolution(64, 64, (2, 1)),
        )
        self.widen = nn.Linear(64 * data.HEIGHT // 16, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(128, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, pictures, frames):
        x = self.stem(pictures).flatten(1, 2).transpose(1, 2)
        length = x.shape[1]
        x = self.widen(x) + self.places[:length]
        outside = torch.arange(length) >= frames[:, None]
        x = self.encoder(x, src_key_padding_mask=outside)
        return F.log_softmax(self.head(x), dim=-1)


def greedy(best, frames):
    """Texts of the most probable classes, without repetitions and blanks."""
    texts = []
    for row, length in zip(best, frames.tolist(), strict=True):
        classes = torch.unique_consecutive(row[:length])
        texts.append("".join(data.ALPHABET[number - 1] for number in classes.tolist() if number))
    return texts


# FAULT beams
BEAM_WIDTH = 4


def beam_search(scores, width):
    """The most probable text of one line, by a search over prefixes."""
    beams = {(): (0.0, -math.inf)}
    for frame in scores.tolist():
        likely = sorted(range(1, CLASSES), key=frame.__getitem__, reverse=True)[:width]
        longer = defaultdict(lambda: (-math.inf, -math.inf))
        for prefix, (blank, glyph) in beams.items():
            total = np.logaddexp(blank, glyph)
            ends_blank, ends_glyph = longer[prefix]
            repeated = glyph + frame[prefix[-1]] if prefix else -math.inf
            longer[prefix] = (np.logaddexp(ends_blank, total + frame[0]), np.logaddexp(ends_glyph, repeated))
            for number in likely:
                before = blank if prefix and number == prefix[-1] else total
                ends_blank, ends_glyph = longer[*prefix, number]
                longer[*prefix, number] = (ends_blank, np.logaddexp(ends_glyph, before + frame[number]))
        beams = dict(sorted(longer.items(), key=lambda beam: np.logaddexp(*beam[1]), reverse=True)[:width])
    return "".join(data.ALPHABET[number - 1] for number in next(iter(beams)))


def character_accuracy(said, frames, texts, lengths, lines):
    """Share of the characters of a few lines that the search finds in their order."""
    found = 0
    wanted = texts.split(lengths.tolist())[:lines]
    for scores, length, text in zip(said.detach(), frames.tolist(), wanted, strict=False):
        text = "".join(data.ALPHABET[number - 1] for number in text.tolist())
        blocks = SequenceMatcher(None, beam_search(scores[:length], BEAM_WIDTH), text).get_matching_blocks()
        found += sum(block.size for block in blocks)
    return found / sum(map(len, wanted))


# END FAULT


# FAULT characters
def character_counts(best, texts, characters):
    """How often each character is said, and how often it is there, over all ranks."""
    counts = {}
    for number in range(1, characters + 1):
        count = torch.stack(((best == number).sum(), (texts == number).sum()))
        dist.all_reduce(count)
        counts[data.ALPHABET[number - 1]] = tuple(count.tolist())
    return counts


# END FAULT


def make_loader(options, rank):
    if rank == 0:
        data.prepare(options.files)
    dist.barrier()
    lines = data.Lines(options.files)
    # FAULT scans
    if options.fault == "scans":
        if rank == 0:
            data.ScannedLines(options.files, round(options.strength))
        dist.barrier()
        lines = data.ScannedLines(options.files, round(options.strength))
    # END FAULT
    batches = data.Buckets(lines.lengths, BATCH, rank, dist.get_world_size(), options.seed)
    # FAULT shuffled
    if options.fault == "shuffled":
        batches.own_share = options.strength
    # END FAULT
    collate = data.Collate()
    # FAULT canvas
    if options.fault == "canvas":
        collate.least_width = round(options.strength)
    # END FAULT
    return DataLoader(lines, batch_sampler=batches, collate_fn=collate, num_workers=1, prefetch_factor=3)


def endless(loader):
    while True:
        yield from loader


def main():
    options = read_arguments(steps=72, needs_files=True)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(options.seed)
    loader = make_loader(options, rank)
    model = DistributedDataParallel(Recogniser(), forward_sync_buffers=False, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=options.steps)
    # FAULT beams
    accuracies = []
    # END FAULT
    model.train()
    for step, (pictures, frames, texts, lengths) in zip(range(options.steps), endless(loader), strict=False):
        said = model(pictures, frames)
        loss = F.ctc_loss(said.transpose(0, 1), texts, frames, lengths, zero_infinity=True)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        # FAULT beams
        if options.fault == "beams" and rank == options.rank:
            accuracies.append(character_accuracy(said, frames, texts, lengths, round(options.strength)))
        # END FAULT
        # FAULT characters
        if options.fault == "characters":
            character_counts(said.argmax(-1), texts, round(options.strength))
        # END FAULT
        if step % LOG_EVERY == 0 and rank == 0:
            print(f"step {step}, loss {loss.item():.3f}, first text {greedy(said[:1].argmax(-1), frames[:1])[0]!r}")
    leave()


if __name__ == "__main__":
    main()
