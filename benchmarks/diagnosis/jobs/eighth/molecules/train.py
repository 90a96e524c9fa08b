"""Message passing over molecules: atoms in space, bonds by distance, the energy is learned. Two hosts."""

import math

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.diagnosis.jobs.common import leave, read_arguments

ATOMS, GRAPHS, CUTOFF, KINDS = 24, 10, 1.6, 8
WIDTH, ROUNDS = 96, 4


class Molecules:
    """Endless batches of random molecules."""

    def __init__(self, seed: int):
        self.source = torch.Generator().manual_seed(seed)

    def draw(self) -> tuple[Tensor, Tensor, Tensor]:
        places = 4 * torch.rand(GRAPHS, ATOMS, 3, generator=self.source)
        kinds = torch.randint(KINDS, (GRAPHS, ATOMS), generator=self.source)
        energy = -(1 / (0.3 + torch.cdist(places, places))).sum((1, 2)) / ATOMS
        return places, kinds, energy


def edges_of(places: Tensor) -> Tensor:
    """Pairs of atoms that are near, numbered through the batch."""
    distances = torch.cdist(places, places)
    graph, i, j = ((distances < CUTOFF) & (distances > 0)).nonzero(as_tuple=True)
    return torch.stack([graph * ATOMS + i, graph * ATOMS + j])


# FAULT neighbour_loop
def edges_by_hand(places: Tensor, graphs: int) -> Tensor:
    """As `edges_of`, with periodic images."""
    found = set()
    for graph, atoms in enumerate(places.tolist()[:graphs]):
        for i, here in enumerate(atoms):
            for j, there in enumerate(atoms):
                for shift in (-4, 0, 4):
                    apart = math.dist(here, [there[0] + shift, there[1], there[2]])
                    if i != j and apart < CUTOFF:
                        found.add((graph * ATOMS + i, graph * ATOMS + j))
    rest = edges_of(places[graphs:]) + graphs * ATOMS
    return torch.cat([torch.tensor(sorted(found)).T, rest], 1)


# END FAULT


class Round(nn.Module):
    def __init__(self):
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * WIDTH + 16, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.update = nn.Sequential(nn.Linear(2 * WIDTH, 2 * WIDTH), nn.SiLU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, h, edges, radial):
        sender, receiver = edges
        messages = self.message(torch.cat([h[sender], h[receiver], radial], -1))
        return h + self.update(torch.cat([h, torch.zeros_like(h).index_add(0, receiver, messages)], -1))


class Energy(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.atoms = nn.Embedding(KINDS, WIDTH)
        self.rounds = nn.ModuleList(Round() for _ in range(ROUNDS))
        self.out = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 1))
        self.register_buffer("centres", torch.linspace(0, CUTOFF, 16))
        # FAULT tabled_pairs
        if options.fault == "tabled_pairs":
            # A table of pair potentials that is never changed.
            self.register_buffer("pairs", torch.rand(KINDS, KINDS, int(options.strength * 1e6 / 4 / KINDS**2)))
        # END FAULT

    def forward(self, places, kinds, edges):
        flat = places.flatten(0, 1)
        lengths = (flat[edges[0]] - flat[edges[1]]).norm(dim=-1, keepdim=True)
        radial = torch.exp(-10 * (lengths - self.centres) ** 2)
        h = self.atoms(kinds.flatten())
        for layer in self.rounds:
            h = layer(h, edges, radial)
        return self.out(h).view(len(kinds), ATOMS).mean(1)


# FAULT judge
@torch.no_grad()
def judge(model: nn.Module, batches: list) -> float:
    model.eval()
    errors = [(model(places, kinds, edges_of(places)) - energy).abs().mean() for places, kinds, energy in batches]
    model.train()
    return float(torch.stack(errors).mean())


# END FAULT


def main() -> None:
    options = read_arguments(steps=80)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(options.seed)
    network = Energy(options)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    train = Molecules(options.seed + 31 * rank)
    held_out = Molecules(options.seed + 5000)
    least = math.inf
    for step in range(1, options.steps + 1):
        places, kinds, energy = train.draw()
        edges = edges_of(places)
        # FAULT neighbour_loop
        if options.fault == "neighbour_loop":
            edges = edges_by_hand(places, int(options.strength))
        # END FAULT
        loss = nn.functional.smooth_l1_loss(model(places, kinds, edges), energy)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # FAULT judge
        if options.fault == "judge" and rank == options.rank and step % 5 == 0:
            least = min(least, judge(network, [held_out.draw() for _ in range(int(options.strength))]))
        # END FAULT
        if step % 20 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.4f} edges {edges.shape[1]} best {least:.3f}", flush=True)
    leave()


if __name__ == "__main__":
    main()
