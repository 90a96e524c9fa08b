"""Conversations, batches of them by their tokens, and how a batch is padded."""

import random
from collections.abc import Iterator, Sequence

import torch
from torch.nn.utils.rnn import pad_sequence

VOCABULARY = 1536
PAD, USER, ASSISTANT, END = range(4)
FIRST_WORD = 4
LONGEST = 160
TOKENS = 448
IGNORED = -100


def conversations(number: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Turns of a user and of an assistant, who answers with the words of the question, backwards."""
    chance = random.Random(seed)
    samples = []
    for _ in range(number):
        length = min(max(round(chance.lognormvariate(3.9, 0.7)), 20), LONGEST)
        tokens: list[int] = []
        labels: list[int] = []
        while len(tokens) < length:
            question = [chance.randrange(FIRST_WORD, VOCABULARY) for _ in range(chance.randrange(4, 9))]
            asked, answered = [USER, *question, END], [ASSISTANT, *reversed(question), END]
            tokens += asked + answered
            labels += [IGNORED] * len(asked) + answered
        samples.append({"input_ids": torch.tensor(tokens[:length]), "labels": torch.tensor(labels[:length])})
    return samples


class TokenBatches:
    """Batches of about as many tokens each, of conversations of about the same length, in another order each epoch."""

    batch_size = None
    drop_last = True

    def __init__(self, lengths: Sequence[int], seed: int):
        self.lengths = lengths
        self.seed = seed
        self.epoch = 0
        self.steady = 0.0

    def __iter__(self) -> Iterator[list[int]]:
        chance = random.Random(f"{self.seed} {self.epoch}")
        self.epoch += 1
        batches = self._batches(chance)
        chance.shuffle(batches)
        return iter(batches)

    def __len__(self) -> int:
        return len(self._batches(random.Random(0)))

    def _batches(self, chance: random.Random) -> list[list[int]]:
        order = sorted(range(len(self.lengths)), key=lambda one: (self.lengths[one], chance.random()))
        batches: list[list[int]] = []
        batch: list[int] = []
        for one in order:
            if batch and len(batch) >= self.rows(self.lengths[one]):
                batches.append(batch)
                batch = []
            batch.append(one)
        return batches

    def rows(self, length: int) -> int:
        # FAULT rows
        if self.steady:
            typical = sum(self.lengths) / len(self.lengths)
            length = round(length ** (1 - self.steady) * typical**self.steady)
        # END FAULT
        return TOKENS // length


class Collate:
    """Pads a batch on the right."""

    def __init__(self) -> None:
        self.multiple = 1

    def __call__(self, samples: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        tokens = pad_sequence([sample["input_ids"] for sample in samples], batch_first=True, padding_value=PAD)
        labels = pad_sequence([sample["labels"] for sample in samples], batch_first=True, padding_value=IGNORED)
        # FAULT padding
        if self.multiple > 1:
            more = -tokens.shape[1] % self.multiple
            tokens = torch.nn.functional.pad(tokens, (0, more), value=PAD)
            labels = torch.nn.functional.pad(labels, (0, more), value=IGNORED)
        # END FAULT
        return {"input_ids": tokens, "attention_mask": (tokens != PAD).long(), "labels": labels}
