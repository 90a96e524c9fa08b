"""A language model whose feed-forward layers are experts, of which each rank holds some."""

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from data import LENGTH, WORDS


class Exchange(torch.autograd.Function):
    """Sends rows of x to the ranks, as many to each as `sent` says, and the gradients back."""

    @staticmethod
    def forward(ctx, x, sent, received):
        ctx.sent, ctx.received = sent, received
        out = x.new_empty(sum(received), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), received, sent)
        return out

    @staticmethod
    def backward(ctx, gradient):
        out = gradient.new_empty(sum(ctx.sent), gradient.shape[1])
        dist.all_to_all_single(out, gradient.contiguous(), ctx.sent, ctx.received)
        return out, None, None


class Experts(nn.Module):
    """Sends each token to one expert; a bias of the experts keeps them evenly loaded, without a loss of its own."""

    def __init__(self, width: int, per_rank: int, fault: str, strength: float, hit: int):
        super().__init__()
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.per_rank = per_rank
        self.count = per_rank * self.world
        self.router = nn.Linear(width, self.count, bias=False)
        self.register_buffer("bias", torch.zeros(self.count))
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(per_rank)
        )
        self.fault, self.strength, self.hit = fault, strength, hit
        self.choice = torch.empty(0, dtype=torch.long)
        self.share = torch.empty(0)

    def balance(self, load: torch.Tensor) -> None:
        # FAULT hot_expert
        if self.fault == "hot_expert":
            # Those of one rank are liked best, and nothing is done about it.
            own = torch.arange(self.count) // self.per_rank == self.hit
            self.bias = torch.where(own, self.strength, 0.0)
            return
        # END FAULT
        self.bias += 0.02 * torch.sign(load.mean() - load)

    def compute(self, x: torch.Tensor, sizes: list[int]) -> torch.Tensor:
        """Of tokens sorted by this rank's experts."""
        parts = zip(self.experts, x.split(sizes), strict=True)
        return torch.cat([expert(part) for expert, part in parts])

    def pass_on(self, x: torch.Tensor, choice: torch.Tensor) -> torch.Tensor:
        """What the chosen experts make of the tokens."""
        order = choice.argsort(stable=True)
        counts = torch.bincount(choice, minlength=self.count)
        others = torch.empty_like(counts)
        dist.all_to_all_single(others, counts)
        sent = counts.view(self.world, -1).sum(1).tolist()
        table = others.view(self.world, -1)
        received = table.sum(1).tolist()
        tokens = Exchange.apply(x[order], sent, received)
        expert_of = torch.arange(self.per_rank).repeat(self.world).repeat_interleave(others)
        by_expert = expert_of.argsort(stable=True)
        made = self.compute(tokens[by_expert], table.sum(0).tolist())
        back = Exchange.apply(made[by_expert.argsort()], received, sent)
        return back[order.argsort()]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = torch.sigmoid(self.router(x))
        self.choice = (scores.detach() + self.bias).argmax(1)
        self.share = scores.gather(1, self.choice.unsqueeze(1))
        if self.training:
            load = torch.bincount(self.choice, minlength=self.count).float()
            self.balance(load)
        # FAULT slices
        if self.fault == "slices":
            pieces = round(self.strength)
            made = [self.pass_on(*piece) for piece in zip(x.chunk(pieces), self.choice.chunk(pieces), strict=True)]
            return torch.cat(made) * self.share
        # END FAULT
        # FAULT capacity
        if self.fault == "capacity":
            # Each expert gets the same number of rows, and what its tokens do not fill is zeros.
            rows = round(len(x) / self.count * self.strength)
            order = self.choice.argsort(stable=True)
            counts = torch.bincount(self.choice, minlength=self.count)
            place = torch.arange(len(x)) - (counts.cumsum(0) - counts)[self.choice[order]]
            fits = place < rows
            slot = self.choice[order][fits] * rows + place[fits]
            padded = torch.zeros(self.count * rows, x.shape[1]).index_copy(0, slot, x[order[fits]])
            even = [self.per_rank * rows] * self.world
            tokens = Exchange.apply(padded, even, even).view(self.world, self.per_rank, rows, -1)
            made = self.compute(tokens.transpose(0, 1).flatten(0, 2), [self.world * rows] * self.per_rank)
            back = made.view(self.per_rank, self.world, rows, -1).transpose(0, 1).flatten(0, 2)
            back = Exchange.apply(back, even, even)
            return torch.zeros_like(x).index_copy(0, order[fits], back[slot]) * self.share
        # END FAULT
        return self.pass_on(x, self.choice) * self.share


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, experts: Experts):
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.before_experts = nn.LayerNorm(width)
        self.experts = experts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(self.before_attention(x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(rows, length, width))
        return x + self.experts(self.before_experts(x).flatten(0, 1)).view_as(x)


class LanguageModel(nn.Module):
    def __init__(self, fault: str, strength: float, hit: int, width: int = 128, layers: int = 2):
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.places = nn.Parameter(torch.randn(LENGTH, width) * 0.02)
        self.layers = nn.ModuleList(Layer(width, 4, Experts(width, 2, fault, strength, hit)) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.norm(x) @ self.words.weight.T

    def of_experts(self) -> list[str]:
        """The names of the parameters that only this rank has."""
        return [name for name, _ in self.named_parameters() if ".experts.experts." in name]
