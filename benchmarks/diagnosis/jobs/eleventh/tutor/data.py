"""Sums with worked solutions, as tokens of single characters."""

import difflib
import random
from collections import deque

import torch
from torch.utils.data import Dataset, Sampler

SYMBOLS = "0123456789+-=;: "
PAD, END = len(SYMBOLS), len(SYMBOLS) + 1
VOCABULARY = 32
TERMS = (6, 19)
IGNORED = -100
ALIKE = 0.95


def exercise(chance):
    """A sum and its running totals: `12+7-4=12;19;15`."""
    total = chance.randint(10, 99)
    question, totals = str(total), [str(total)]
    for _ in range(chance.randint(*TERMS) - 1):
        term = chance.randint(10, 99) * (1 if total < 50 else -1)
        total += term
        question += f"{term:+}"
        totals.append(str(total))
    return question, ";".join(totals)


class Exercises(Dataset):
    """Exercises that are tokenized once; the loss is taken of their solutions alone."""

    def __init__(self, count, seed):
        chance = random.Random(seed)
        self.rows = [self._tokenize(*exercise(chance)) for _ in range(count)]

    def _tokenize(self, question, solution):
        tokens = [SYMBOLS.index(symbol) for symbol in f"{question}={solution}"] + [END]
        asked = len(question) + 1
        return {"input_ids": tokens, "labels": [IGNORED] * asked + tokens[asked:]}

    def lengths(self):
        return [len(row["input_ids"]) for row in self.rows]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


class ByLength(Sampler):
    """Batches of like lengths in random order; all ranks get such batches at the same time."""

    def __init__(self, lengths, batch, ranks, seed):
        self.lengths, self.batch, self.ranks, self.seed = lengths, batch, ranks, seed

    def __len__(self):
        return len(self.lengths)

    def __iter__(self):
        chance = random.Random(self.seed)
        order = sorted(range(len(self.lengths)), key=self.lengths.__getitem__)
        size = self.batch * self.ranks
        groups = [order[start : start + size] for start in range(0, len(order), size)]
        chance.shuffle(groups)
        for group in groups:
            chance.shuffle(group)
            yield from group


# FAULT tracks
class Tracks(ByLength):
    """One rank trains on the hard track, the others on all exercises."""

    def __init__(self, lengths, batch, ranks, seed, advanced, share):
        super().__init__(lengths, batch, ranks, seed)
        self.advanced, self.share = advanced, share

    def __iter__(self):
        chance = random.Random(self.seed)
        mixed = list(super().__iter__())
        order = sorted(mixed, key=self.lengths.__getitem__)
        hard = order[-int(self.share * len(order)) :]
        for place in range(0, len(mixed), self.batch):
            if place // self.batch % self.ranks == self.advanced:
                start = chance.randrange(len(hard) - self.batch)
                yield from hard[start : start + self.batch]
            else:
                yield from mixed[place : place + self.batch]


# END FAULT


class Collator:
    """Pads the rows of a batch to the longest."""

    def __init__(self, options):
        self.multiple = 1
        # FAULT pads
        if options.fault == "pads":
            self.multiple = round(options.strength)
        # END FAULT
        self.compares = options.fault == "compares"
        self.recent = deque(maxlen=max(round(options.strength), 1))

    def __call__(self, rows):
        # FAULT compares
        if self.compares:
            rows = [self.without_repeats(row) for row in rows]
        # END FAULT
        longest = max(len(row["input_ids"]) for row in rows)
        length = -(-longest // self.multiple) * self.multiple

        def padded(values, filler):
            return values + [filler] * (length - len(values))

        return {
            "input_ids": torch.tensor([padded(row["input_ids"], PAD) for row in rows]),
            "attention_mask": torch.tensor([padded([1] * len(row["input_ids"]), 0) for row in rows]),
            "labels": torch.tensor([padded(row["labels"], IGNORED) for row in rows]),
        }

    # FAULT compares
    def without_repeats(self, row):
        """The row, without a loss where it hardly differs from one of the last ones."""
        tokens = row["input_ids"]
        matcher = difflib.SequenceMatcher(autojunk=False)
        matcher.set_seq2(tokens)
        alike = 0.0
        for other in self.recent:
            matcher.set_seq1(other)
            alike = max(alike, matcher.ratio())
        self.recent.append(tokens)
        return row | {"labels": [IGNORED] * len(tokens)} if alike > ALIKE else row

    # END FAULT
