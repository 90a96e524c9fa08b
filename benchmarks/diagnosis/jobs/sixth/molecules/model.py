"""A network that passes messages between atoms that are near each other."""

import torch
import torch.nn as nn
from data import KINDS, NEAR, Batch


class GraphNorm(nn.Module):
    """Normalizes the atoms of each molecule by themselves."""

    def __init__(self, width: int, fault: str = "none"):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.fault = fault

    def forward(self, x: torch.Tensor, owner: torch.Tensor, molecules: int) -> torch.Tensor:
        # FAULT one_by_one
        if self.fault == "one_by_one":
            normalized = torch.zeros_like(x)
            for molecule in range(molecules):
                own = owner == molecule
                atoms = x[own]
                centred = atoms - atoms.mean(0)
                normalized[own] = centred / (centred.pow(2).mean(0) + 1e-5).sqrt()
            return normalized * self.weight + self.bias
        # END FAULT
        count = torch.zeros(molecules).index_add_(0, owner, torch.ones(len(x))).unsqueeze(1)
        mean = torch.zeros(molecules, x.shape[1]).index_add(0, owner, x) / count
        centred = x - mean[owner]
        spread = torch.zeros(molecules, x.shape[1]).index_add(0, owner, centred.pow(2)) / count
        return centred / (spread[owner] + 1e-5).sqrt() * self.weight + self.bias


class Layer(nn.Module):
    def __init__(self, width: int, distances: int, fault: str):
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * width + distances, width), nn.SiLU(), nn.Linear(width, width))
        self.update = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width))
        self.norm = GraphNorm(width, fault)

    def forward(self, x, edges, distance, owner, molecules):
        here, there = edges
        messages = self.message(torch.cat([x[here], x[there], distance], dim=1))
        received = torch.zeros_like(x).index_add(0, here, messages)
        return x + self.update(torch.cat([self.norm(x, owner, molecules), received], dim=1))


class GraphNetwork(nn.Module):
    def __init__(self, width: int = 64, layers: int = 4, distances: int = 16, fault: str = "none", strength: float = 0):
        super().__init__()
        self.kinds = nn.Embedding(KINDS, width)
        self.register_buffer("centres", torch.linspace(0, NEAR, distances))
        loops = round(strength) if fault == "one_by_one" else 0
        self.layers = nn.ModuleList(
            Layer(width, distances, fault if number < loops else "none") for number in range(layers)
        )
        self.energy = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, batch: Batch) -> torch.Tensor:
        here, there = batch.edges
        apart = (batch.places[here] - batch.places[there]).norm(dim=1, keepdim=True)
        distance = torch.exp(-10 * (apart - self.centres).pow(2))
        x = self.kinds(batch.kinds)
        for layer in self.layers:
            x = layer(x, batch.edges, distance, batch.owner, len(batch.energies))
        of_atoms = self.energy(x).squeeze(1)
        return torch.zeros(len(batch.energies)).index_add(0, batch.owner, of_atoms)
