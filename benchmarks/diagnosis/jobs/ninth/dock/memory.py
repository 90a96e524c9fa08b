"""The replay memory: the latest transitions, one tensor for each of their parts."""

import torch


class Memory:
    def __init__(self, capacity, observed, actions):
        self.capacity = capacity
        self.parts = {
            "seen": torch.zeros(capacity, observed),
            "actions": torch.zeros(capacity, actions),
            "rewards": torch.zeros(capacity),
            "following": torch.zeros(capacity, observed),
            "ended": torch.zeros(capacity),
        }
        self.next = self.filled = 0

    def add(self, **new):
        count = len(new["rewards"])
        rows = (self.next + torch.arange(count)) % self.capacity
        for name, part in self.parts.items():
            part[rows] = new[name].to(part.dtype)
        self.next = (self.next + count) % self.capacity
        self.filled = min(self.filled + count, self.capacity)

    def sample(self, rows):
        chosen = torch.randint(self.filled, (rows,))
        return {name: part[chosen] for name, part in self.parts.items()}


# FAULT rolling
class RollingMemory(Memory):
    """Keeps the transitions in order of age: the oldest one is the first row."""

    def add(self, **new):
        for name, part in self.parts.items():
            self.parts[name] = torch.cat((part, new[name].to(part.dtype)))[-self.capacity :]
        self.filled = min(self.filled + len(new["rewards"]), self.capacity)

    def sample(self, rows):
        chosen = self.capacity - 1 - torch.randint(self.filled, (rows,))
        return {name: part[chosen] for name, part in self.parts.items()}


# END FAULT
