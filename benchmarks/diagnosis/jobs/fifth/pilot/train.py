"""Teach boats to cross a strait: advantage actor-critic, the world simulated between updates. One process.

python train.py --files /tmp/pilot
"""

import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from world import BEAMS, BOATS, Strait

from benchmarks.diagnosis.jobs.common import read_arguments

MOVES, SEEN, WIDTH, ROUNDS, KEPT = 5, BEAMS + 4, 448, 12, 2400
THRUST = np.array([(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)], float)


class Pilot(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(SEEN, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh()
        )
        self.moves, self.value = nn.Linear(WIDTH, MOVES), nn.Linear(WIDTH, 1)

    def forward(self, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.body(seen)
        return self.moves(hidden), self.value(hidden).squeeze(-1)


class Memory:
    """What was lived through, in order; the oldest is forgotten."""

    def __init__(self, fault: str) -> None:
        self.seen = np.zeros((KEPT, SEEN), np.float32)
        self.came = np.zeros(KEPT, np.float32)
        self.fault, self.at = fault, 0
        self.rows: list[tuple[np.ndarray, float]] = []

    def keep(self, seen: np.ndarray, came: np.ndarray) -> None:
        where = (self.at + np.arange(len(seen))) % KEPT
        self.seen[where], self.came[where] = seen, came
        self.at += len(seen)
        # FAULT shuffled
        if self.fault == "shuffled":
            self.rows = (self.rows + list(zip(seen, came, strict=True)))[-KEPT:]
        # END FAULT

    def draw(self, many: int, rounds: int) -> tuple[torch.Tensor, torch.Tensor]:
        # FAULT shuffled
        if self.fault == "shuffled":
            for _ in range(rounds):
                random.shuffle(self.rows)
                seen = np.stack([row[0] for row in self.rows])
                came = np.array([row[1] for row in self.rows], np.float32)
            return torch.from_numpy(seen[:many]), torch.from_numpy(came[:many])
        # END FAULT
        rows = np.random.randint(0, min(self.at, KEPT), many)
        return torch.from_numpy(self.seen[rows]), torch.from_numpy(self.came[rows])


@torch.no_grad()
def choose(pilot: Pilot, seen: np.ndarray, singly: int) -> np.ndarray:
    boats = torch.from_numpy(seen)
    # FAULT one_by_one
    if singly:
        moves = [int(pilot(boat[None])[0].softmax(1).multinomial(1)) for boat in boats[:singly]]
        boats = boats[singly:]
        rest = pilot(boats)[0].softmax(1).multinomial(1).squeeze(1).tolist() if len(boats) else []
        return np.array(moves + rest)
    # END FAULT
    return pilot(boats)[0].softmax(1).multinomial(1).squeeze(1).numpy()


# FAULT exam
def exam(pilot: Pilot, rounds: int) -> float:
    """How far new boats come, in the mean."""
    strait = Strait(99, BOATS, "none", 0)
    seen, total = strait.see(), 0.0
    for _ in range(rounds):
        with torch.no_grad():
            best = pilot(torch.from_numpy(seen))[0].argmax(1).numpy()
        seen, reward, _ = strait.act(THRUST[best])
        total += float(reward.mean())
    return total


# END FAULT


def main() -> None:
    options = read_arguments(64)
    fault, strength = options.fault, options.strength
    torch.set_num_threads(1)  # Its operations are small.
    torch.manual_seed(options.seed)
    random.seed(options.seed)
    np.random.seed(options.seed)
    pilot = Pilot()
    optimizer = torch.optim.Adam(pilot.parameters(), lr=3e-4)
    strait = Strait(options.seed, BOATS, fault, strength)
    memory = Memory(fault)
    singly = round(strength) if fault == "one_by_one" else 0
    seen = strait.see()

    for step in range(options.steps):
        sights, moves, rewards, ended = [], [], [], []
        for _ in range(ROUNDS):
            move = choose(pilot, seen, singly)
            after, reward, done = strait.act(THRUST[move])
            sights.append(seen)
            moves.append(move)
            rewards.append(reward)
            ended.append(done)
            seen = after
        came = np.zeros((ROUNDS, BOATS), np.float32)
        with torch.no_grad():
            ahead = pilot(torch.from_numpy(seen))[1].numpy()
        for at in reversed(range(ROUNDS)):
            ahead = rewards[at] + 0.98 * ahead * ~ended[at]
            came[at] = ahead
        lived, returns = np.concatenate(sights), came.reshape(-1)
        memory.keep(lived, returns)
        again, once_came = memory.draw(640, round(strength) if fault == "shuffled" else 1)

        # FAULT blank_pages
        if fault == "blank_pages":
            planes = torch.zeros(round(strength), BOATS * ROUNDS, SEEN)
            planes[0] = torch.from_numpy(lived)
            lived = planes[0].numpy()
        # END FAULT
        said, value = pilot(torch.from_numpy(lived))
        advantage = torch.from_numpy(returns) - value
        likely = -F.cross_entropy(said, torch.from_numpy(np.concatenate(moves)), reduction="none")
        spread = torch.distributions.Categorical(logits=said).entropy().mean()
        recalled = F.mse_loss(pilot(again)[1], once_came)
        loss = -(likely * advantage.detach()).mean() + 0.5 * advantage.square().mean() + 0.5 * recalled - 0.01 * spread
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # FAULT exam
        if fault == "exam" and step % 8 == 7:
            print(f"{step}: {exam(pilot, round(strength)):.3f}")
        # END FAULT
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
