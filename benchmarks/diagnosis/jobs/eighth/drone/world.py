"""A drone flies through a field of poles: plain Python, as simulators that grew out of a notebook are."""

import copy
import math
import random


class World:
    def __init__(self, seed, options, *, crowded=False):
        self.rng = random.Random(seed)
        self.options = options
        poles = 24
        # FAULT crowded_field
        if options.fault == "crowded_field" and crowded:
            poles = int(options.strength)
        # END FAULT
        self.poles = [(self.rng.uniform(-10, 10), self.rng.uniform(-10, 10)) for _ in range(poles)]
        self.past = []
        self.reset()

    def reset(self):
        self.at, self.speed, self.age = [0.0, 0.0], [0.0, 0.0], 0
        self.goal = (self.rng.uniform(-9, 9), self.rng.uniform(-9, 9))
        self.past.clear()
        return self.look()

    def look(self):
        """Position, speed, way to the goal, and the nearest pole in each of 16 directions."""
        rays = [10.0] * 16
        for x, y in self.poles:
            dx, dy = x - self.at[0], y - self.at[1]
            sector = int((math.atan2(dy, dx) + math.pi) / (2 * math.pi) * 15.99)
            rays[sector] = min(rays[sector], math.hypot(dx, dy))
        return [*self.at, *self.speed, self.goal[0] - self.at[0], self.goal[1] - self.at[1], *rays]

    def step(self, action):
        before = math.dist(self.at, self.goal)
        push = 2 * math.pi * action / 8
        self.speed = [0.9 * self.speed[0] + 0.1 * math.cos(push), 0.9 * self.speed[1] + 0.1 * math.sin(push)]
        self.at = [self.at[0] + self.speed[0], self.at[1] + self.speed[1]]
        self.age += 1
        # FAULT replay_copies
        if self.options.fault == "replay_copies":
            self.past.append({"at": self.at, "speed": self.speed, "poles": copy.deepcopy(self.poles)})
            self.past = copy.deepcopy(self.past[-int(self.options.strength) :])
        # END FAULT
        seen = self.look()
        hit = min(seen[6:]) < 0.2
        done = hit or self.age > 120 or math.dist(self.at, self.goal) < 0.5
        reward = before - math.dist(self.at, self.goal) - 2.0 * hit
        info = {"age": self.age, "hit": hit, "left": math.dist(self.at, self.goal), "path": [*self.at]}
        return (self.reset() if done else seen), reward, done, info
