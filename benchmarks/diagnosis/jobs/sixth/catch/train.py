"""Learns to play catch by advantage actor-critic: a dozen moves of many games, then a step; one rank."""

import collections
import copy
import threading
import zlib

import torch
import torch.nn as nn
import torch.nn.functional as F
from games import ACTIONS, SIDE, Games

from benchmarks.diagnosis.jobs.common import read_arguments

GAMES, MOVES = 48, 12

arguments = read_arguments(60)
fault, strength = arguments.fault, arguments.strength
torch.set_num_threads(1)
torch.manual_seed(arguments.seed)


class Player(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * (SIDE // 4) ** 2, 256),
            nn.ReLU(),
        )
        self.policy = nn.Linear(256, ACTIONS)
        self.value = nn.Linear(256, 1)

    def forward(self, frames: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.trunk(frames)
        return self.policy(hidden), self.value(hidden).squeeze(1)


player = Player()
optimizer = torch.optim.RMSprop(player.parameters(), lr=5e-4)
games = Games(GAMES, arguments.seed, fault, strength)
lock = threading.Lock()
archive: collections.deque[bytes] = collections.deque(maxlen=50 * MOVES)
ended = threading.Event()
threads: list[threading.Thread] = []
balls: collections.deque[tuple[float, float]] = collections.deque(maxlen=20_000)
memory = torch.zeros(0, 1, SIDE, SIDE)

# FAULT archive
if fault == "archive":

    def write_archive() -> None:
        """Compresses the last games, and lets nobody add to them while it does."""
        while not ended.wait(0.02):
            with lock:
                recent = b"".join(list(archive)[-round(strength) * MOVES :])
                zlib.compress(recent, 6)

    threads.append(threading.Thread(target=write_archive, daemon=True))
# END FAULT

# FAULT spectator
if fault == "spectator":

    def watch() -> None:
        """Counts where the balls of the last games were, for a live page."""
        while not ended.wait(0.02):
            seen: collections.Counter = collections.Counter()
            for row, column in list(balls)[-round(strength) :]:
                seen[f"{row:.0f},{column:.0f}"] += 1

    threads.append(threading.Thread(target=watch, daemon=True))
# END FAULT

for thread in threads:
    thread.start()

frames = torch.from_numpy(games.frames())
for step in range(arguments.steps):
    seen, actions, rewards, overs = [], [], [], []
    actor = player
    # FAULT double
    if fault == "double":
        # The games compute in float64, and their player was made to do so too.
        actor = copy.deepcopy(player).double()
    # END FAULT
    for _ in range(MOVES):
        with torch.no_grad():
            scores, _ = actor(frames.to(actor.value.weight.dtype))
        action = torch.distributions.Categorical(logits=scores).sample()
        reward, over = games.step(action.numpy())
        seen.append(frames)
        actions.append(action)
        rewards.append(torch.from_numpy(reward))
        overs.append(torch.from_numpy(over))
        with lock:
            archive.append(frames.numpy().tobytes())
        balls.extend(map(tuple, games.ball.tolist()))
        # FAULT grow_memory
        if fault == "grow_memory":
            # The last frames in one tensor, to draw from.
            memory = torch.cat([memory, frames])[-round(strength) :]
        # END FAULT
        frames = torch.from_numpy(games.frames())
    with torch.no_grad():
        value = player(frames)[1]
    returns = []
    for reward, over in zip(reversed(rewards), reversed(overs), strict=True):
        value = reward + 0.97 * value * ~over
        returns.append(value)
    goal = torch.cat(returns[::-1])
    scores, values = player(torch.cat(seen))
    log_shares = F.log_softmax(scores, dim=1)
    chosen = log_shares.gather(1, torch.cat(actions).unsqueeze(1)).squeeze(1)
    entropy = -(log_shares.exp() * log_shares).sum(1).mean()
    loss = -(chosen * (goal - values.detach())).mean() + F.mse_loss(values, goal) / 2 - 0.01 * entropy
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(player.parameters(), 0.5)
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step}: mean reward {torch.cat(rewards).mean().item():.3f}")

ended.set()
for thread in threads:
    thread.join()
