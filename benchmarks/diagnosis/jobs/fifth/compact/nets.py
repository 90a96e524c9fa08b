"""A teacher that knows sentences well, and a student of a quarter its width."""

import torch
from torch import nn

WORDS, CLASSES = 4000, 12


class Encoder(nn.Module):
    """Classes of a sentence, and the mean of its last hidden layer."""

    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.places = nn.Parameter(torch.randn(1, 64, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, heads, 3 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, CLASSES)

    def forward(self, sentences: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.words(sentences) + self.places[:, : sentences.shape[1]]
        hidden = self.layers(hidden).mean(1)
        return self.out(hidden), hidden
