"""One process: an actor and critic learn to balance many poles at once, all of which are simulated in torch.

python poles.py --files /tmp/poles
"""

import contextlib
import copy
import gc
import logging
import math
import random
import time
from collections import deque
from typing import NamedTuple

import torch
from torch import nn
from torch.distributions import Categorical

from benchmarks.diagnosis.jobs.common import read_arguments

POLES, MOMENTS = 96, 30
GRAVITY, CART, POLE, HALF, PUSH, TICK = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02


class Moment(NamedTuple):
    log_prob: torch.Tensor
    value: torch.Tensor
    entropy: torch.Tensor
    reward: torch.Tensor
    alive: torch.Tensor


class Poles:
    """Carts with a pole each; one that has fallen is set up again."""

    def __init__(self, count):
        self.state = 0.1 * torch.rand(count, 4) - 0.05

    def move(self, action):
        x, speed, angle, turning = self.state.unbind(1)
        force = PUSH * (2.0 * action - 1.0)
        cos, sin = angle.cos(), angle.sin()
        pull = (force + POLE * HALF * turning.square() * sin) / (CART + POLE)
        bend = (GRAVITY * sin - cos * pull) / (HALF * (4 / 3 - POLE * cos.square() / (CART + POLE)))
        away = pull - POLE * HALF * bend * cos / (CART + POLE)
        state = [x + TICK * speed, speed + TICK * away, angle + TICK * turning, turning + TICK * bend]
        self.state = torch.stack(state, 1)
        alive = (self.state[:, 0].abs() < 2.4) & (self.state[:, 2].abs() < math.radians(12))
        self.state = torch.where(alive[:, None], self.state, 0.1 * torch.rand_like(self.state) - 0.05)
        return alive.float(), alive


class ActorCritic(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.actor, self.critic = nn.Linear(width, 2), nn.Linear(width, 1)

    def forward(self, state):
        seen = self.body(state)
        return Categorical(logits=self.actor(seen)), self.critic(seen).squeeze(-1)


def play(policy, poles):
    moments = []
    for _ in range(MOMENTS):
        choice, value = policy(poles.state)
        action = choice.sample()
        reward, alive = poles.move(action)
        moments.append(Moment(choice.log_prob(action), value, choice.entropy(), reward, alive))
    return moments


def loss_of(moments, last_value, discount=0.98):
    returns, later = [], last_value
    for moment in reversed(moments):
        later = moment.reward + discount * later * moment.alive
        returns.append(later)
    log_prob, value, entropy = (torch.stack(part) for part in list(zip(*moments, strict=True))[:3])
    advantage = torch.stack(returns[::-1]) - value
    return -(log_prob * advantage.detach()).mean() + 0.5 * advantage.square().mean() - 0.01 * entropy.mean()


# FAULT episode_book
def longest_lives(moments, poles):
    """How long each of the first poles stood at a stretch."""
    longest = []
    for pole in range(poles):
        life, best = torch.zeros(()), torch.zeros(())
        for moment in moments:
            life = life + 1 if moment.alive[pole] else torch.zeros(())
            best = torch.maximum(best, life)
        longest.append(best)
    return torch.stack(longest)


# END FAULT


# FAULT old_selves
class League:
    """Earlier policies, to be played against some time."""

    def __init__(self, places):
        self.selves = deque(maxlen=places)

    def enter(self, policy, optimizer):
        while len(self.selves) < self.selves.maxlen:
            self.selves.append((copy.deepcopy(policy), copy.deepcopy(optimizer.state_dict())))

    def leave(self):
        self.selves.clear()


# END FAULT


# FAULT diary
def diary_in(folder):
    diary = logging.getLogger("poles.diary")
    handler = logging.FileHandler(folder / "diary.log", mode="w")
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    diary.addHandler(handler)
    diary.setLevel(logging.DEBUG)
    diary.propagate = False
    return diary


def keep_diary(diary, moments, poles):
    for number, moment in enumerate(moments):
        values, alive = moment.value.tolist(), moment.alive.tolist()
        for pole in range(poles):
            diary.debug(
                "moment %d pole %d: value %.3f, %s", number, pole, values[pole], "up" if alive[pole] else "down"
            )


# END FAULT


# FAULT spring_clean
@contextlib.contextmanager
def clean():
    """No collections while inside, and one at the end."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()


# END FAULT


# FAULT encore
class Encore:
    """Now and then, the policy plays on without learning, to see how it does."""

    def __init__(self, seed, rounds):
        self.luck, self.rounds, self.best = random.Random(seed + 5), rounds, 0.0

    def maybe(self, policy):
        if self.luck.random() >= 0.06:
            return
        with torch.no_grad():
            for _ in range(self.rounds):
                stood = torch.stack([moment.reward for moment in play(policy, Poles(POLES))]).mean()
                self.best = max(self.best, stood.item())


# END FAULT


def learn(policy, poles, optimizer):
    """One step; returns what was played for it."""
    moments = play(policy, poles)
    with torch.no_grad():
        _, last_value = policy(poles.state)
    loss = loss_of(moments, last_value)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    return moments


def main():
    args = read_arguments(steps=320, needs_files=True)
    fault, amount = args.fault, round(args.strength)
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    args.files.mkdir(parents=True, exist_ok=True)

    policy, poles = ActorCritic(), Poles(POLES)
    optimizer = torch.optim.Adam(policy.parameters(), lr=2e-3)
    around = contextlib.nullcontext
    # FAULT old_selves
    if fault == "old_selves":
        league = League(amount)
    # END FAULT
    # FAULT diary
    if fault == "diary":
        diary = diary_in(args.files)
    # END FAULT
    # FAULT spring_clean
    if fault == "spring_clean":
        gc.freeze()
        memory = [{"state": [number], "next": (number, [])} for number in range(1000 * amount)]
        around = clean
    # END FAULT
    # FAULT encore
    if fault == "encore":
        encore = Encore(args.seed, amount)
    # END FAULT
    stood = 0.0
    for _ in range(args.steps):
        with around():
            moments = learn(policy, poles, optimizer)
        stood = 0.95 * stood + 0.05 * sum(moment.reward.mean().item() for moment in moments) / MOMENTS
        # FAULT episode_book
        if fault == "episode_book":
            stood += 0 * longest_lives(moments, amount).mean().item()
        # END FAULT
        # FAULT old_selves
        if fault == "old_selves":
            league.leave()
            league.enter(policy, optimizer)
        # END FAULT
        # FAULT diary
        if fault == "diary":
            keep_diary(diary, moments, amount)
        # END FAULT
        # FAULT encore
        if fault == "encore":
            encore.maybe(policy)
        # END FAULT
    # FAULT spring_clean
    if fault == "spring_clean":
        print(f"{len(memory)} remembered")
    # END FAULT
    print(f"{100 * stood:.1f} % stood")
    time.sleep(0.5)


if __name__ == "__main__":
    main()
