"""The networks: what the robots do, and what they expect to gain."""

import torch
from torch import nn
from torch.distributions import Independent, Normal

from benchmarks.diagnosis.jobs.eleventh.walker.robot import JOINTS, SENSORS

HIDDEN = 384


def mlp(outputs):
    layers = [nn.Linear(SENSORS, HIDDEN), nn.Tanh()]
    for _ in range(2):
        layers += [nn.Linear(HIDDEN, HIDDEN), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(HIDDEN, outputs))


class ActorCritic(nn.Module):
    """The policy with what it expects to gain."""

    def __init__(self):
        super().__init__()
        self.actor = mlp(JOINTS)
        self.critic = mlp(1)
        self.log_deviation = nn.Parameter(torch.full((JOINTS,), -0.5))

    def policy(self, sensed):
        return Independent(Normal(self.actor(sensed), self.log_deviation.exp(), validate_args=False), 1)

    def forward(self, sensed, torque):
        policy = self.policy(sensed)
        return policy.log_prob(torque), policy.entropy(), self.critic(sensed).squeeze(-1)
