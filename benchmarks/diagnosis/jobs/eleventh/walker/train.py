"""Teaches robots to walk by PPO: each rank has robots of its own, and DDP averages the gradients of the updates.

torchrun --nproc-per-node 2 train.py
"""

import copy
import gc
import multiprocessing

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from benchmarks.diagnosis.jobs.common import leave, read_arguments
from benchmarks.diagnosis.jobs.eleventh.walker.policy import ActorCritic
from benchmarks.diagnosis.jobs.eleventh.walker.robot import ROBOTS, Robots, RunningMoments

HORIZON = 24
EPOCHS = 2
MINIBATCHES = 3
DISCOUNT = 0.99
LAMBDA = 0.95
CLIP = 0.2


# FAULT moments
def shared_moments(sensed, groups):
    """Mean and variance over the robots of all ranks, by groups of sensors."""
    means, variances = [], []
    for part in sensed.tensor_split(groups, dim=1):
        mean, square = part.mean(0), part.square().mean(0)
        dist.all_reduce(mean)
        dist.all_reduce(square)
        means.append(mean / dist.get_world_size())
        variances.append(square / dist.get_world_size() - means[-1].square())
    return torch.cat(means), torch.cat(variances).clamp(min=0)


# END FAULT


# FAULT infos
class Diary:
    """What happened to each robot in each tick, of the newest ticks."""

    def __init__(self, ticks):
        self.ticks = [self._infos(np.zeros(ROBOTS), np.zeros(ROBOTS, bool)) for _ in range(ticks)]

    def _infos(self, rewards, ended):
        pairs = zip(rewards.tolist(), ended.tolist(), strict=True)
        return [{"reward": reward, "episode": {"ended": end, "notes": []}} for reward, end in pairs]

    def write(self, rewards, ended):
        self.ticks = [*self.ticks[1:], self._infos(rewards, ended)]


# END FAULT


# FAULT histograms
def log_gradients(network, board, values):
    """Show on the dashboard how the gradients of each layer are spread, from a part of their values."""
    for name, weight in network.named_parameters():
        some = weight.grad.flatten()[:values].numpy()
        board[name] = np.quantile(np.abs(some), np.linspace(0, 1, 33))


# END FAULT


# FAULT evaluator
def evaluate(policies, ticks):
    """Let robots walk by the means of each policy that arrives."""
    robots, moments, network = Robots(7), RunningMoments(), ActorCritic()
    while True:
        weights = policies.get()
        network.load_state_dict({name: torch.from_numpy(weight) for name, weight in weights.items()})
        with torch.no_grad():
            for _ in range(ticks):
                sensed = moments(torch.from_numpy(robots.sense()))
                robots.step(network.policy(sensed).mean.numpy())


def start_evaluator(ticks):
    """Evaluate beside the training, in a process of each rank; returns the queue for its policies."""
    context = multiprocessing.get_context("fork")
    policies = context.Queue()
    policies.cancel_join_thread()
    context.Process(target=evaluate, args=(policies, ticks), daemon=True).start()
    return policies


# END FAULT


# FAULT drift
@torch.no_grad()
def drift(old, sensed, torque, log_prob):
    """How far the policy of this update is from the one that walked."""
    old_log_prob = old.policy(sensed).log_prob(torque)
    return (old_log_prob.mean() - log_prob.mean()).item()


# END FAULT


@torch.no_grad()
def walk(network, robots, moments, options, diary):
    """Let the robots walk for a while; returns what was sensed, done and gained, stacked by ticks."""
    ticks = []
    for _ in range(HORIZON):
        raw = torch.from_numpy(robots.sense())
        mean, variance = raw.mean(0), raw.var(0, correction=0)
        # FAULT moments
        if options.fault == "moments":
            mean, variance = shared_moments(raw, round(options.strength))
        # END FAULT
        moments.add(mean, variance, len(raw))
        sensed = moments(raw)
        policy = network.policy(sensed)
        torque = policy.sample()
        rewards, ended = robots.step(torque.numpy())
        # FAULT infos
        if options.fault == "infos":
            diary.write(rewards, ended)
        # END FAULT
        ticks.append((sensed, torque, policy.log_prob(torque), torch.from_numpy(rewards), torch.from_numpy(ended)))
    last = network.critic(moments(torch.from_numpy(robots.sense()))).squeeze(-1)
    return [torch.stack(column) for column in zip(*ticks, strict=True)], last


@torch.no_grad()
def advantages_of(network, sensed, rewards, ended, last):
    """Generalised advantages, and the returns that the critic is to learn."""
    values = torch.cat([network.critic(sensed).squeeze(-1), last[None]])
    going = DISCOUNT * (~ended).float()
    errors = rewards + going * values[1:] - values[:-1]
    advantages, ahead = torch.empty_like(rewards), torch.zeros(ROBOTS)
    for tick in reversed(range(HORIZON)):
        ahead = errors[tick] + LAMBDA * going[tick] * ahead
        advantages[tick] = ahead
    return advantages, advantages + values[:-1]


def ppo_loss(log_prob, old_log_prob, entropy, values, advantages, returns):
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    ratio = (log_prob - old_log_prob).exp()
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    return 0.5 * F.mse_loss(values, returns) - gain.mean() - 0.003 * entropy.mean()


def shuffled_rows(count):
    """Rows of all minibatches of one iteration, epoch after epoch."""
    for _ in range(EPOCHS):
        yield from torch.randperm(count).split(count // MINIBATCHES)


def main():
    options = read_arguments(steps=72)
    # FAULT evaluator
    policies = start_evaluator(round(options.strength)) if options.fault == "evaluator" else None
    # END FAULT
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(options.seed)
    robots, moments = Robots(1000 * options.seed + rank), RunningMoments()
    diary = None
    # FAULT infos
    if options.fault == "infos":
        diary = Diary(round(options.strength))
    # END FAULT
    network = ActorCritic()
    model = DistributedDataParallel(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-4, eps=1e-5, foreach=True)
    board = {}
    for iteration in range(options.steps // (EPOCHS * MINIBATCHES)):
        (sensed, torque, old_log_prob, rewards, ended), last = walk(network, robots, moments, options, diary)
        advantages, returns = advantages_of(network, sensed, rewards, ended, last)
        columns = [column.flatten(0, 1) for column in (sensed, torque, old_log_prob, advantages, returns)]
        # FAULT drift
        if options.fault == "drift":
            old, known = copy.deepcopy(network), round(options.strength * len(columns[0]))
        # END FAULT
        for rows in shuffled_rows(len(columns[0])):
            sensed, torque, old_log_prob, advantages, returns = (column[rows] for column in columns)
            log_prob, entropy, values = model(sensed, torque)
            loss = ppo_loss(log_prob, old_log_prob, entropy, values, advantages, returns)
            # FAULT drift
            if options.fault == "drift":
                board["drift"] = drift(old, columns[0][:known], columns[1][:known], log_prob)
            # END FAULT
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 0.5)
            # FAULT histograms
            if options.fault == "histograms" and rank == options.rank:
                log_gradients(network, board, round(1000 * options.strength))
            # END FAULT
            optimizer.step()
        # FAULT infos
        if options.fault == "infos":
            gc.collect()
        # END FAULT
        # FAULT evaluator
        if policies is not None and policies.empty():
            policies.put({name: weight.numpy().copy() for name, weight in network.state_dict().items()})
        # END FAULT
        if rank == 0 and iteration % 4 == 3:
            print(f"iteration {iteration}, loss {loss.item():.3f}, gain {rewards.mean().item():.3f}", flush=True)
    leave()


if __name__ == "__main__":
    main()
