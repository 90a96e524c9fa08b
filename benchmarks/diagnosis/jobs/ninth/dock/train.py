"""Trains a pilot that docks craft in a harbour, by soft actor-critic with a replay memory; one process.

python train.py --files FOLDER
"""

import copy
import math
import multiprocessing
import os

import torch
import torch.nn.functional as F
from harbour import ACTIONS, OBSERVED, TICK, Harbour
from memory import Memory, RollingMemory
from torch import nn

from benchmarks.diagnosis.jobs.common import read_arguments

CRAFT = 64
BATCH = 384
HIDDEN = 416
CAPACITY = 60_000
DISCOUNT = 0.98
TEMPERATURE = 0.05
FOLLOW = 0.01


def layers(inputs, outputs):
    return nn.Sequential(
        nn.Linear(inputs, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, outputs),
    )


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = layers(OBSERVED, 2 * ACTIONS)

    def forward(self, seen):
        """Actions within -1 and 1 and the logarithms of their probabilities."""
        mean, spread = self.layers(seen).chunk(2, dim=1)
        chosen = torch.distributions.Normal(mean, spread.clamp(-5, 1).exp())
        raw = chosen.rsample()
        squeezed = 2 * (math.log(2) - raw - F.softplus(-2 * raw))
        return raw.tanh(), (chosen.log_prob(raw) - squeezed).sum(dim=1)


class Critics(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = layers(OBSERVED + ACTIONS, 1)
        self.second = layers(OBSERVED + ACTIONS, 1)

    def forward(self, seen, actions):
        both = torch.cat((seen, actions), dim=1)
        return self.first(both).squeeze(1), self.second(both).squeeze(1)


# FAULT shaping
def nearness(harbour, ticks):
    """How near each craft comes to a buoy if it keeps its speed."""
    buoys = harbour.buoys.tolist()
    penalties = []
    for (x, y), (along, across) in zip(harbour.places.tolist(), harbour.speeds.tolist(), strict=True):
        nearest = 1.0
        for tick in range(ticks):
            ahead_x, ahead_y = x + tick * TICK * along, y + tick * TICK * across
            for buoy_x, buoy_y in buoys:
                nearest = min(nearest, math.hypot(buoy_x - ahead_x, buoy_y - ahead_y))
        penalties.append(math.exp(-50 * nearest))
    return torch.tensor(penalties)


# END FAULT


# FAULT scouts
def sail(state, seed, voyages):
    """The mean reward of voyages with the pilot as it is."""
    torch.manual_seed(seed)
    actor = Actor()
    actor.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
    earned = 0.0
    for voyage in range(voyages):
        harbour = Harbour(1, seed + voyage)
        for _ in range(40):
            with torch.no_grad():
                actions, _ = actor(harbour.observe())
            earned += harbour.move(actions)[1].item()
    return earned / voyages


# END FAULT


def main():
    options = read_arguments(steps=80, needs_files=True)
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    options.files.mkdir(parents=True, exist_ok=True)
    harbour = Harbour(CRAFT, options.seed)
    memory = Memory(CAPACITY, OBSERVED, ACTIONS)
    # FAULT rolling
    if options.fault == "rolling":
        memory = RollingMemory(round(1000 * options.strength), OBSERVED, ACTIONS)
    # END FAULT
    for _ in range(40):
        seen, actions = harbour.observe(), 2 * torch.rand(CRAFT, ACTIONS) - 1
        following, rewards, ended = harbour.move(actions)
        memory.add(seen=seen, actions=actions, rewards=rewards, following=following, ended=ended)

    actor, critics = Actor(), Critics()
    targets = copy.deepcopy(critics).requires_grad_(False)
    ahead = torch.no_grad()
    # FAULT tracked
    if options.fault == "tracked":
        targets.requires_grad_(True)
        ahead = torch.enable_grad()
    # END FAULT
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4)
    critics_optimizer = torch.optim.Adam(critics.parameters(), lr=3e-4)
    # FAULT scouts
    if options.fault == "scouts":
        pool = multiprocessing.get_context("fork").Pool(4)
    # END FAULT

    for step in range(options.steps):
        with torch.no_grad():
            seen = harbour.observe()
            actions, _ = actor(seen)
        following, rewards, ended = harbour.move(actions)
        # FAULT shaping
        if options.fault == "shaping":
            rewards = rewards - 0.1 * nearness(harbour, round(options.strength))
        # END FAULT
        memory.add(seen=seen, actions=actions, rewards=rewards, following=following, ended=ended)

        batch = memory.sample(BATCH)
        with ahead:
            actions, likely = actor(batch["following"])
            worth = torch.minimum(*targets(batch["following"], actions)) - TEMPERATURE * likely
            wanted = batch["rewards"] + DISCOUNT * (1 - batch["ended"]) * worth
        first, second = critics(batch["seen"], batch["actions"])
        critics_loss = F.mse_loss(first, wanted) + F.mse_loss(second, wanted)
        critics_optimizer.zero_grad()
        critics_loss.backward()
        critics_optimizer.step()

        critics.requires_grad_(False)
        actions, likely = actor(batch["seen"])
        actor_loss = (TEMPERATURE * likely - torch.minimum(*critics(batch["seen"], actions))).mean()
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()
        critics.requires_grad_(True)

        with torch.no_grad():
            torch._foreach_lerp_(list(targets.parameters()), list(critics.parameters()), FOLLOW)
        # FAULT scouts
        if options.fault == "scouts" and step % 10 == 0:
            state = {name: value.numpy().copy() for name, value in actor.state_dict().items()}
            pool.starmap_async(sail, [(state, seed, round(options.strength)) for seed in range(4)], chunksize=1)
        # END FAULT
        # FAULT backup
        if options.fault == "backup" and step % 3 == 2:
            kept = round(1000 * options.strength)
            saved = {name: part[:kept].clone() for name, part in memory.parts.items()}
            saved |= {"actor": actor.state_dict(), "critics": critics.state_dict(), "targets": targets.state_dict()}
            torch.save(saved, options.files / "last.part")
            os.replace(options.files / "last.part", options.files / "last.pt")
        # END FAULT
    # FAULT scouts
    if options.fault == "scouts":
        pool.terminate()
    # END FAULT
    print(f"{options.steps} steps, loss {critics_loss.item():.4f}")


if __name__ == "__main__":
    main()
