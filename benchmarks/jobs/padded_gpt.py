"""A small GPT on sequences of unlike lengths, padded or packed: the same sequences in the same order.

    python benchmarks/jobs/padded_gpt.py [--packed] [--steps N] [--seed N]

Padded, a batch is B x S token ids, and causal attention runs on all of it. Packed, all sequences of the batch are one row:
linear layers see only their tokens, and attention runs on one sequence after the other.
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

PAD, WORDS, WIDTH, HEADS, LAYERS, BATCH, LONGEST = 0, 1024, 192, 4, 2, 8, 256


class Texts(Dataset):
    """Sequences whose lengths are uniform from 16 to `LONGEST`."""

    def __init__(self, seed: int) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.lengths = torch.randint(16, LONGEST + 1, (4096,), generator=self.random)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Tensor:
        random = torch.Generator().manual_seed(index)
        return torch.randint(PAD + 1, WORDS, (int(self.lengths[index]),), generator=random)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor, lengths: list[int] | None) -> Tensor:
        """`x` has shape (B, S, WIDTH), or (1, tokens, WIDTH) with the lengths of the sequences in it."""
        heads = self.qkv(self.before(x)).view(*x.shape[:2], 3, HEADS, -1).transpose(1, 3)
        rows = [heads] if lengths is None else heads.split(lengths, dim=3)
        attended = [scaled_dot_product_attention(*row.unbind(2), is_causal=True) for row in rows]
        x = x + self.out(torch.cat(attended, dim=2).transpose(1, 2).flatten(2))
        return x + self.mlp(self.after(x))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids: Tensor, places: Tensor, lengths: list[int] | None) -> Tensor:
        x = self.words(ids) + self.places(places)
        for block in self.blocks:
            x = block(x, lengths)
        return self.head(self.norm(x))


def padded(texts: list[Tensor]) -> tuple[Tensor, Tensor, None]:
    ids = pad_sequence(texts, batch_first=True, padding_value=PAD)
    return ids, torch.arange(ids.shape[1]), None


def packed(texts: list[Tensor]) -> tuple[Tensor, Tensor, list[int]]:
    lengths = [len(text) for text in texts]
    return torch.cat(texts)[None], torch.cat([torch.arange(length) for length in lengths])[None], lengths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packed", action="store_true")
    parser.add_argument("--steps", type=int, default=33)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader = DataLoader(Texts(options.seed), BATCH, shuffle=True, collate_fn=packed if options.packed else padded)
    for step, (ids, places, lengths) in enumerate(loader):
        if step == options.steps:
            break
        optimizer.zero_grad()
        scores = model(ids, places, lengths)
        cross_entropy(scores.flatten(0, 1), ids.flatten(), ignore_index=PAD).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
