"""Two towers that put pictures and captions into one space."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from data import WORDS

CONTEXT = 64


class Towers(nn.Module):
    def __init__(self, width: int = 128, layers: int = 2):
        super().__init__()
        self.picture = nn.Sequential(
            nn.Conv2d(3, 32, 3, stride=2, padding=1),
            nn.GELU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.GELU(),
            nn.Conv2d(64, 128, 3, stride=2, padding=1),
            nn.GELU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(128, width),
        )
        self.words = nn.Embedding(WORDS, width, padding_idx=0)
        self.places = nn.Parameter(torch.randn(CONTEXT, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.text = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, pictures: torch.Tensor, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        empty = words == 0
        hidden = self.text(self.words(words) + self.places[: words.shape[1]], src_key_padding_mask=empty)
        said = ~empty.unsqueeze(-1)
        sentence = (hidden * said).sum(1) / said.sum(1)
        picture = F.normalize(self.picture(pictures), dim=-1)
        return picture, F.normalize(self.head(sentence), dim=-1), self.scale.exp()
