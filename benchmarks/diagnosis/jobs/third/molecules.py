"""One process: regresses a property of small graphs by passing messages along dense adjacencies.

python molecules.py --files /tmp/molecules
"""

import csv
import gc
import os
import time

import torch
from torch import nn

from benchmarks.diagnosis.jobs.common import read_arguments

ATOMS, FEATURES, HIDDEN, ROWS = 24, 32, 160, 40


class Message(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.other = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN)

    def forward(self, bonds, atoms):
        return torch.relu(self.norm(atoms + self.own(atoms) + bonds @ self.other(atoms)))


class Property(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(FEATURES, HIDDEN)
        self.rounds = nn.ModuleList(Message() for _ in range(4))
        self.read = nn.Sequential(nn.Linear(HIDDEN, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, bonds, atoms):
        atoms = self.enter(atoms)
        for message in self.rounds:
            atoms = message(bonds, atoms)
        return self.read(atoms.sum(1)).squeeze(1)


def molecules(count):
    bonds = (torch.rand(count, ATOMS, ATOMS) < 0.12).float()
    bonds = ((bonds + bonds.transpose(1, 2)) > 0).float() / 4
    atoms = torch.randn(count, ATOMS, FEATURES)
    return bonds, atoms, (bonds @ atoms).mean((1, 2)) * 10


# FAULT leftovers
class Leftover:
    """An atom that knows its neighbours, which know it."""

    __slots__ = ("__weakref__", "neighbours")

    def __init__(self, before):
        self.neighbours = [before]
        if before is not None:
            before.neighbours.append(self)


def chain(length):
    last = None
    for _ in range(length):
        last = Leftover(last)
    return last


# END FAULT


# FAULT table_of_states
class TableOfStates:
    """Writes what a layer gave for some of its molecules to a table."""

    def __init__(self, path, rows):
        self.file, self.rows = path.open("w"), rows
        self.table = csv.writer(self.file)

    def __call__(self, module, inputs, states):
        self.table.writerows(states.detach()[: self.rows].flatten(0, 1).tolist())


# END FAULT


# FAULT bond_walk
def rings(bonds, count):
    """In how many ways the first molecules can be walked along four bonds, back to where one began."""
    found = 0
    for molecule in bonds[:count].tolist():
        near = [{other for other, bond in enumerate(row) if bond} for row in molecule]
        found += sum(
            len(near[one] & near[third]) for one in range(ATOMS) for other in near[one] for third in near[other]
        )
    return found


# END FAULT


# FAULT durable_rows
def durable_row(handle, step, name, value):
    os.write(handle, f"{step},{name},{value.abs().max().item():.5f}\n".encode())


# END FAULT


def main():
    options = read_arguments(steps=56, needs_files=True)
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    options.files.mkdir(parents=True, exist_ok=True)
    net = Property()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    every = molecules(1200)
    fault, amount = options.fault, options.strength
    # FAULT table_of_states
    if fault == "table_of_states":
        net.rounds[1].register_forward_hook(TableOfStates(options.files / "states.csv", round(amount)))
    # END FAULT
    # FAULT durable_rows
    if fault == "durable_rows":
        handle = os.open(options.files / "rows.csv", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DSYNC)
    # END FAULT
    # FAULT sweep
    if fault == "sweep":
        gc.freeze()
        owned = [[{"atom": number}] for number in range(round(amount * 1000))]
    # END FAULT
    # FAULT leftovers
    if fault == "leftovers":
        owned = []
    # END FAULT
    for step in range(options.steps):
        bonds, atoms, truth = (part[torch.randint(len(part), (ROWS,))] for part in every)
        loss = nn.functional.smooth_l1_loss(net(bonds, atoms), truth)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad()
        # FAULT bond_walk
        if fault == "bond_walk":
            rings(bonds, round(amount))
        # END FAULT
        # FAULT durable_rows
        if fault == "durable_rows":
            for name, value in list(net.named_parameters())[: round(amount)]:
                durable_row(handle, step, name, value)
        # END FAULT
        # FAULT leftovers
        if fault == "leftovers":
            owned.append(chain(round(amount * 1000)))
        # END FAULT
        # FAULT sweep
        if fault == "sweep" and owned:
            gc.collect()
        # END FAULT
    print(f"loss {loss.item():.4f}")
    time.sleep(0.5)


if __name__ == "__main__":
    main()
