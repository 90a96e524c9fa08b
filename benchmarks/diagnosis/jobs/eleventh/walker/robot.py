"""Walking robots, all simulated at once: legs of springs under a body that is to move on without falling."""

import numpy as np
import torch

ROBOTS = 64
JOINTS = 8
SENSORS = 3 * JOINTS + 6
LONGEST = 200
TICK = 0.05


class Robots:
    """A vector of robots; those that fall, or have walked for long enough, stand at the start again."""

    def __init__(self, seed):
        self.chance = np.random.default_rng(seed)
        self.phase = np.linspace(0, 2 * np.pi, JOINTS, endpoint=False, dtype=np.float32)
        self.angle = np.zeros((ROBOTS, JOINTS), np.float32)
        self.speed = np.zeros((ROBOTS, JOINTS), np.float32)
        self.body = np.zeros((ROBOTS, 4), np.float32)
        self.age = np.zeros(ROBOTS, np.int64)
        self._stand(np.ones(ROBOTS, bool))

    def _stand(self, which):
        count = which.sum()
        self.angle[which] = self.chance.normal(0, 0.1, (count, JOINTS))
        self.speed[which] = 0
        self.body[which] = self.chance.normal(0, 0.05, (count, 4))
        self.age[which] = 0

    def sense(self):
        """What the robots feel: joints, contacts with the ground, the body, and the clock of the gait."""
        contact = (np.sin(self.angle + self.phase) < 0).astype(np.float32)
        clock = self.age * TICK * 4
        gait = np.stack([np.sin(clock), np.cos(clock)], axis=1)
        return np.concatenate([self.angle, self.speed, contact, self.body, gait], axis=1, dtype=np.float32)

    def step(self, torque):
        """Move all robots on; returns rewards, and which of them ended their walk."""
        force = 4 * np.clip(torque, -1, 1) - 6 * self.angle - 0.8 * self.speed
        self.speed += TICK * force
        self.angle += TICK * self.speed
        push = (self.speed * np.cos(self.angle + self.phase)).mean(axis=1)
        tilt = (self.angle * np.sin(self.phase)).mean(axis=1)
        self.body[:, 0] += TICK * (push - 0.5 * self.body[:, 0])
        self.body[:, 1] += TICK * (tilt - 0.3 * self.body[:, 1] + self.chance.normal(0, 0.2, ROBOTS))
        self.body[:, 2:] = 0.9 * self.body[:, 2:] + 0.1 * self.body[:, :2]
        self.age += 1
        ended = (np.abs(self.body[:, 1]) > 0.6) | (self.age >= LONGEST)
        rewards = self.body[:, 0] + 0.1 - 0.01 * np.square(torque).sum(axis=1)
        self._stand(ended)
        return rewards.astype(np.float32), ended


class RunningMoments:
    """Mean and variance of all that was sensed so far."""

    def __init__(self):
        self.count = torch.tensor(1e-4)
        self.mean = torch.zeros(SENSORS)
        self.variance = torch.ones(SENSORS)

    def add(self, mean, variance, count):
        delta, total = mean - self.mean, self.count + count
        both = self.variance * self.count + variance * count + delta.square() * self.count * count / total
        self.mean, self.variance, self.count = self.mean + delta * count / total, both / total, total

    def __call__(self, sensed):
        return ((sensed - self.mean) / (self.variance + 1e-6).sqrt()).clamp(-5, 5)
