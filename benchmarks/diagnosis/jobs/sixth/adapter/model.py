"""A decoder whose linear layers are frozen, with a small trainable product beside each."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from data import LENGTH, PIECES


class Adapted(nn.Module):
    """A frozen linear layer with low-rank factors that are trained."""

    def __init__(self, inputs: int, outputs: int, fault: str, rank: int = 8):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * inputs**-0.5, requires_grad=False)
        self.down = nn.Parameter(torch.randn(rank, inputs) * inputs**-0.5)
        self.up = nn.Parameter(torch.zeros(outputs, rank))
        # FAULT unfrozen
        if fault == "unfrozen":
            # Not among what the optimizer gets, but its gradient is computed and sent.
            self.weight.requires_grad_(True)
        # END FAULT

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight) + 2 * F.linear(F.linear(x, self.down), self.up)


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, fault: str):
        super().__init__()
        self.heads = heads
        self.fault = fault
        self.before_attention = nn.LayerNorm(width)
        self.qkv = Adapted(width, 3 * width, fault)
        self.out = Adapted(width, width, fault)
        self.before_feed = nn.LayerNorm(width)
        self.wide = Adapted(width, 4 * width, fault)
        self.narrow = Adapted(4 * width, width, fault)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        # FAULT by_formula
        if self.fault == "by_formula":
            length = q.shape[-2]
            scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
            later = torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)
            scores = scores.masked_fill(later, float("-inf"))
            return torch.softmax(scores, dim=-1) @ v
        # END FAULT
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        qkv = self.qkv(self.before_attention(x)).view(rows, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attend(q, k, v).transpose(1, 2).reshape(rows, length, width))
        return x + self.narrow(F.gelu(self.wide(self.before_feed(x))))


class Decoder(nn.Module):
    def __init__(self, width: int = 128, layers: int = 3, fault: str = "none", strength: float = 0):
        super().__init__()
        self.words = nn.Embedding(len(PIECES), width)
        self.places = nn.Parameter(torch.randn(LENGTH, width) * 0.02)
        hit = round(strength)
        self.layers = nn.ModuleList(Layer(width, 8, fault if number < hit else "none") for number in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(PIECES), bias=False)
        for module in self.modules():
            if isinstance(module, nn.Embedding | nn.LayerNorm | nn.Linear):
                module.requires_grad_(False)
        self.places.requires_grad_(False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))
