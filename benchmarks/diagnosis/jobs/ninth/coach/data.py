"""Synthetic conversations, and a byte-pair tokenizer for them."""

import random
from functools import cache
from itertools import pairwise

import torch
from torch.utils.data import Dataset

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOWELS = "aeiou"
VOCABULARY = 512
IGNORED = -100


class Tokenizer:
    """Merges letters to syllables, and syllables to pairs, by the rank of each merge."""

    def __init__(self, seed):
        chance = random.Random(seed)
        self.syllables = [a + b for a in LETTERS if a not in VOWELS for b in VOWELS]
        merges = [tuple(syllable) for syllable in self.syllables]
        known = set(merges)
        while len(LETTERS) + len(merges) < VOCABULARY:
            pair = (chance.choice(self.syllables), chance.choice(self.syllables))
            if pair not in known:
                known.add(pair)
                merges.append(pair)
        self.ranks = {pair: rank for rank, pair in enumerate(merges)}
        self.ids = {token: number for number, token in enumerate([*LETTERS, *("".join(pair) for pair in merges)])}
        self.known = cache(self.merge)

    def merge(self, word):
        parts = list(word)
        while len(parts) > 1:
            ranks = [self.ranks.get(pair, VOCABULARY) for pair in pairwise(parts)]
            best = min(ranks)
            if best == VOCABULARY:
                break
            place = ranks.index(best)
            parts[place : place + 2] = ["".join(parts[place : place + 2])]
        return [self.ids[part] for part in parts]

    def encode(self, text):
        return [token for word in text.split() for token in self.known(word)]


def conversations(tokenizer, count, words, seed):
    chance = random.Random(seed)
    lexicon = ["".join(chance.choices(tokenizer.syllables, k=chance.randint(2, 4))) for _ in range(800)]
    return [" ".join(chance.choices(lexicon, k=words)) for _ in range(count)]


class Conversations(Dataset):
    """Tokens and targets of the ends of conversations; the prompt's tokens are no targets."""

    def __init__(self, texts, tokenizer, length, prompt):
        self.length, self.prompt = length, prompt
        self.cached = {number: self.cut(tokenizer.encode(text)) for number, text in enumerate(texts)}

    def cut(self, tokens):
        tokens = torch.tensor(tokens[-self.length - 1 :])
        targets = tokens[1:].clone()
        targets[: self.prompt] = IGNORED
        return tokens[:-1], targets

    def __len__(self):
        return len(self.cached)

    def __getitem__(self, number):
        return self.cached[number]


# FAULT uncached
class PartlyCached(Conversations):
    """Encodes as they are asked for the conversations that its cache lacks."""

    def __init__(self, texts, tokenizer, length, prompt, share):
        super().__init__(texts, tokenizer, length, prompt)
        self.texts, self.tokenizer = texts, tokenizer
        self.lacking = set(random.Random(0).sample(range(len(texts)), round(share * len(texts))))

    def __getitem__(self, number):
        if number not in self.lacking:
            return super().__getitem__(number)
        tokens = []
        for word in self.texts[number].split():
            tokens.extend(self.tokenizer.merge(word))
        return self.cut(tokens)


# END FAULT


def dataset(options, rank, length, prompt):
    tokenizer = Tokenizer(seed=options.seed)
    texts = conversations(tokenizer, count=768, words=450, seed=options.seed)
    # FAULT uncached
    if options.fault == "uncached" and rank == options.rank:
        return PartlyCached(texts, tokenizer, length, prompt, options.strength)
    # END FAULT
    return Conversations(texts, tokenizer, length, prompt)
