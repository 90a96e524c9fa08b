"""Crossings of a town and the roads between them; how fast traffic flows at each a few minutes later."""

import torch

FEATURES = 16


def town(seed: int, crossings: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Crossings (N, FEATURES), roads (2, E), their lengths (E, 1), and speeds to learn (N,)."""
    chance = torch.Generator().manual_seed(seed)
    place = torch.rand(crossings, 2, generator=chance)
    near = torch.cdist(place, place).topk(7, largest=False).indices[:, 1:]
    to = torch.arange(crossings).repeat_interleave(6)
    roads = torch.stack([near.reshape(-1), to])
    length = (place[roads[0]] - place[roads[1]]).norm(dim=1, keepdim=True)
    features = torch.randn(crossings, FEATURES, generator=chance)
    speeds = features[roads[0], 0].reshape(crossings, 6).mean(1) + 0.3 * features[:, 1]
    return features, roads, length, speeds
