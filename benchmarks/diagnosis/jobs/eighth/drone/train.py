"""PPO for the drone. Each rank flies its own worlds; gradients are averaged."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributions import Categorical
from torch.nn.parallel import DistributedDataParallel
from world import World

from benchmarks.diagnosis.jobs.common import leave, read_arguments


@dataclass
class Config:
    worlds: int = 8
    horizon: int = 24
    gamma: float = 0.98
    lam: float = 0.95
    clip: float = 0.2


class ActorCritic(nn.Module):
    def __init__(self, seen=22, hidden=640, actions=8):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(seen, hidden),
            nn.Tanh(),
            nn.Linear(hidden, hidden),
            nn.Tanh(),
            nn.Linear(hidden, hidden),
            nn.Tanh(),
        )
        self.actor = nn.Linear(hidden, actions)
        self.critic = nn.Linear(hidden, 1)

    def forward(self, seen):
        h = self.trunk(seen)
        return self.actor(h), self.critic(h).squeeze(-1)


@torch.no_grad()
def fly(policy, worlds, seen, config, options):
    """What a horizon of flying gives: sights, actions, their log probabilities, values, rewards, ends and notes."""
    rows, notes = [], []
    for _ in range(config.horizon):
        if options.fault != "one_by_one":
            logits, values = policy(seen)
        # FAULT one_by_one
        if options.fault == "one_by_one":
            answers = [policy(sight[None]) for sight in seen]
            logits, values = (torch.cat(parts) for parts in zip(*answers, strict=True))
        # END FAULT
        choice = Categorical(logits=logits)
        actions = choice.sample()
        moved = [world.step(action) for world, action in zip(worlds, actions.tolist(), strict=True)]
        sights, rewards, dones, infos = zip(*moved, strict=True)
        rows.append(
            (seen, actions, choice.log_prob(actions), values, torch.tensor(rewards), torch.tensor(dones).float())
        )
        notes.extend(infos)
        seen = torch.tensor(sights)
    return [torch.stack(column) for column in zip(*rows, strict=True)], seen, notes


def advantages(rewards, values, dones, last, config):
    out, running = torch.zeros_like(rewards), torch.zeros(rewards.shape[1])
    following = torch.cat([values[1:], last[None]])
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + config.gamma * following[t] * (1 - dones[t]) - values[t]
        running = delta + config.gamma * config.lam * (1 - dones[t]) * running
        out[t] = running
    return out


# FAULT sums_by_element
def advantages_by_element(rewards, values, dones, last, config, reach):
    """The sum of the next `reach` deltas of each world and instant, as the paper writes it."""
    out = torch.zeros_like(rewards)
    steps, worlds = rewards.shape
    for w in range(worlds):
        for t in range(steps):
            weight = torch.tensor(1.0)
            for k in range(t, min(t + reach, steps)):
                after = values[k + 1, w] if k + 1 < steps else last[w]
                out[t, w] += weight * (rewards[k, w] + config.gamma * after * (1 - dones[k, w]) - values[k, w])
                weight = weight * config.gamma * config.lam * (1 - dones[k, w])
    return out


# END FAULT


def ppo_loss(model, seen, actions, old, gains, returns, config):
    logits, values = model(seen)
    choice = Categorical(logits=logits)
    ratio = (choice.log_prob(actions) - old).exp()
    surrogate = torch.min(ratio * gains, ratio.clamp(1 - config.clip, 1 + config.clip) * gains)
    return -surrogate.mean() + 0.5 * (values - returns).pow(2).mean() - 0.01 * choice.entropy().mean()


def main():
    options, config = read_arguments(steps=80), Config()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(options.seed)
    policy = ActorCritic()
    model = DistributedDataParallel(policy)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    torch.manual_seed(options.seed + rank)
    worlds = [World(100 * rank + n, options, crowded=rank == options.rank) for n in range(config.worlds)]
    seen = torch.tensor([world.look() for world in worlds])
    flights = []
    for step in range(options.steps):
        (sights, actions, old, values, rewards, dones), seen, notes = fly(policy, worlds, seen, config, options)
        with torch.no_grad():
            last = policy(seen)[1]
        gains = advantages(rewards, values, dones, last, config)
        # FAULT sums_by_element
        if options.fault == "sums_by_element":
            gains = advantages_by_element(rewards, values, dones, last, config, int(options.strength))
        # END FAULT
        returns = gains + values
        # FAULT share_notes
        if options.fault == "share_notes":
            flights = (flights + [dict(note, rank=rank, step=step) for note in notes])[-int(options.strength) :]
            everyone = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, flights)
        # END FAULT
        batch = [column.flatten(0, 1) for column in (sights, actions, old, gains, returns)]
        loss = ppo_loss(model, *batch, config)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        if step % 20 == 0 and rank == 0:
            print(f"{step} reward {rewards.mean().item():.3f} hits {sum(note['hit'] for note in notes)}", flush=True)
    leave()


if __name__ == "__main__":
    main()
