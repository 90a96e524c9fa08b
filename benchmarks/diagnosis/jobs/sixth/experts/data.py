"""A text of words drawn at random, of which each makes some others likely."""

import torch

WORDS = 2048
LENGTH = 64


def make_text(seed: int, length: int = 100_000) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    steps = torch.randint(1, 40, (length,), generator=draw)
    return steps.cumsum(0) % WORDS


def draw_batch(text: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.randint(len(text) - LENGTH - 1, (rows,))
    windows = torch.stack([text[start : start + LENGTH + 1] for start in starts])
    return windows[:, :-1], windows[:, 1:]
