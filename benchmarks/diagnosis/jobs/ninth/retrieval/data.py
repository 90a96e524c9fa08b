"""Question and passage pairs of a small corpus, in batches of similar length."""

import os
import shutil
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, Sampler

WORDS = 8192
PAIRS = 640
PAD = 0


def prepare(folder: Path) -> Path:
    """Write the corpus unless it is there."""
    target = folder / "corpus"
    if target.exists():
        return target
    draft = folder / f"corpus-{os.getpid()}"
    draft.mkdir(parents=True)
    chance = np.random.default_rng(7)
    lengths = (8 + 104 * chance.beta(0.6, 0.9, PAIRS)).astype(np.int64)
    ends = lengths.cumsum()
    topics = np.repeat(chance.integers(1, WORDS - 400, PAIRS), lengths)
    tokens = topics + (400 * chance.random(ends[-1]) ** 2).astype(np.int64)
    np.save(draft / "tokens.npy", tokens.astype(np.int32))
    np.save(draft / "ends.npy", ends)
    nearby = np.clip(np.arange(WORDS) + chance.integers(-3, 4, WORDS), 1, WORDS - 1)
    forms = (f"w{word:05d}\t{form}\tw{near:05d}\n" for form in range(12) for word, near in enumerate(nearby))
    (draft / "synonyms.tsv").write_text("".join(forms))
    try:
        draft.rename(target)
    except OSError:
        shutil.rmtree(draft)
    return target


def read_synonyms(file: Path) -> np.ndarray:
    """The synonym of each word."""
    synonyms = np.arange(WORDS)
    with file.open() as lines:
        for line in lines:
            word, form, near = line.rstrip().split("\t")
            if form == "0":
                synonyms[int(word[1:])] = int(near[1:])
    return synonyms


class Pairs(Dataset):
    """A passage and a question that uses some of its words or their synonyms."""

    def __init__(self, corpus: Path):
        self.tokens = np.load(corpus / "tokens.npy", mmap_mode="r")
        self.ends = np.load(corpus / "ends.npy")
        self.lengths = np.diff(self.ends, prepend=0)
        self.lexicon = corpus / "synonyms.tsv"
        self.synonyms = None

    def __len__(self):
        return len(self.ends)

    def __getitem__(self, index):
        if self.synonyms is None:
            self.synonyms = read_synonyms(self.lexicon)
        end = self.ends[index]
        passage = torch.from_numpy(self.tokens[end - self.lengths[index] : end].astype(np.int64))
        asked = passage[torch.rand(len(passage)) < 0.3][:14]
        asked = asked if len(asked) else passage[:4]
        other = torch.from_numpy(self.synonyms)[asked]
        return torch.where(torch.rand(len(asked)) < 0.2, other, asked), passage


def collate(pairs, multiple=1):
    """Questions and passages, each padded to the longest, and that to a multiple."""
    return tuple(padded(texts, multiple) for texts in zip(*pairs, strict=True))


def padded(texts, multiple):
    batch = pad_sequence(texts, batch_first=True, padding_value=PAD)
    return torch.nn.functional.pad(batch, (0, -batch.shape[1] % multiple), value=PAD)


class Batches(Sampler):
    """This rank's share of batches whose texts are alike in length; all ranks go through them in the same order."""

    def __init__(self, lengths, size, rank, ranks, seed):
        self.lengths, self.size, self.rank, self.ranks, self.seed = lengths, size, rank, ranks, seed
        self.epoch = 0
        self.per_epoch = len(lengths) // (size * ranks)

    def __len__(self):
        return self.per_epoch

    def __iter__(self):
        chance = np.random.default_rng((self.seed, self.epoch))
        whole = self.size * self.ranks
        blurred = self.lengths + chance.random(len(self.lengths))
        batches = np.argsort(blurred)[: len(blurred) // whole * whole].reshape(-1, whole)
        for number in self.order(chance.permutation(len(batches)))[: self.per_epoch]:
            yield batches[number, self.rank :: self.ranks].tolist()

    def order(self, numbers):
        return numbers


# FAULT own_order
class ShuffledBatches(Batches):
    """Batches of which each rank shuffles a share anew, so that gradients mix more lengths."""

    share = 1.0

    def order(self, numbers):
        mixed = round(self.share * len(numbers))
        chance = np.random.default_rng((self.seed, self.epoch, self.rank))
        return np.concatenate([chance.permutation(numbers[:mixed]), numbers[mixed:]])


# END FAULT
