"""Tags the words of sentences of different lengths with a plain transformer. DDP.

torchrun --nproc-per-node 2 tagger.py
"""

from collections import Counter
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.diagnosis.jobs.common import leave, read_arguments

WORDS, TAGS, NO_TAG = 600, 9, -100


def corpus(count):
    lengths = torch.randint(20, 29, (count,)).tolist()
    return [torch.randint(1, WORDS, (length,)) for length in lengths]


def batch_of(sentences, width=None):
    words = pad_sequence(sentences, batch_first=True)
    # FAULT same_width
    if width is not None:
        words = nn.functional.pad(words, (0, width - words.shape[1]))
    # END FAULT
    mask = (words != 0).long()
    return {"input_ids": words, "attention_mask": mask, "labels": (words % TAGS).masked_fill(mask == 0, NO_TAG)}


class Tagger(nn.Module):
    def __init__(self, size=96):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, size, padding_idx=0), nn.Embedding(128, size)
        layer = nn.TransformerEncoderLayer(size, 6, 320, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.tags = nn.Linear(size, TAGS)

    def forward(self, input_ids, attention_mask):
        x = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        return self.tags(self.encoder(x, src_key_padding_mask=attention_mask == 0))


# FAULT confusions
class Confusions:
    """Counts which tag was taken for which, several times over for parts of the sentences."""

    def __init__(self, passes):
        self.passes, self.counts = passes, Counter()

    def update(self, scores, labels):
        for _ in range(self.passes):
            for guesses, truths in zip(scores.argmax(-1), labels, strict=True):
                self.counts.update((int(a), int(b)) for a, b in zip(guesses, truths, strict=True) if b != NO_TAG)


# END FAULT


def train(options):
    torch.manual_seed(options.seed)
    sentences = corpus(2400)
    collate = batch_of
    # FAULT same_width
    if options.fault == "same_width":
        collate = partial(batch_of, width=round(options.strength))
    # END FAULT
    metric = None
    # FAULT confusions
    if options.fault == "confusions":
        metric = Confusions(round(options.strength))
    # END FAULT
    loader = DataLoader(sentences, 12, sampler=DistributedSampler(sentences), collate_fn=collate, drop_last=True)
    model = DistributedDataParallel(Tagger())
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    for _, batch in zip(range(options.steps), loader, strict=False):
        scores = model(batch["input_ids"], batch["attention_mask"])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), batch["labels"].flatten(), ignore_index=NO_TAG)
        # FAULT confusions
        if metric is not None:
            metric.update(scores.detach(), batch["labels"])
        # END FAULT
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    final = train(read_arguments(steps=56))
    if dist.get_rank() == 0:
        print(f"loss {final:.3f}")
    leave()
