"""A harbour in which many craft steer at once to their berths, past buoys."""

import torch

BUOYS = 24
OBSERVED = 6 + 3 * BUOYS
ACTIONS = 2
TICK = 0.05


class Harbour:
    """`craft` craft in the unit square; each begins anew where it has arrived, struck a buoy or sailed for too long."""

    def __init__(self, craft, seed):
        self.random = torch.Generator().manual_seed(seed)
        self.buoys = torch.rand(BUOYS, 2, generator=self.random)
        self.places = torch.zeros(craft, 2)
        self.speeds = torch.zeros(craft, 2)
        self.berths = torch.zeros(craft, 2)
        self.ages = torch.zeros(craft)
        self._begin(torch.ones(craft, dtype=torch.bool))

    def observe(self):
        to_buoys = self.buoys - self.places[:, None]
        seen = (self.places, self.speeds, self.berths - self.places, to_buoys.flatten(1), to_buoys.norm(dim=2))
        return torch.cat(seen, dim=1)

    def move(self, thrusts):
        """Rewards, and which craft are at their end; what is observed then is seen before they begin anew."""
        before = (self.berths - self.places).norm(dim=1)
        self.speeds = 0.9 * self.speeds + TICK * thrusts
        self.places = self.places + TICK * self.speeds
        self.ages += 1
        after = (self.berths - self.places).norm(dim=1)
        struck = (self.buoys - self.places[:, None]).norm(dim=2).amin(dim=1) < 0.01
        rewards = 10 * (before - after) - 1.0 * struck
        ended = struck | (after < 0.02)
        following = self.observe()
        self._begin(ended | (self.ages > 200))
        return following, rewards, ended

    def _begin(self, anew):
        count = int(anew.sum())
        self.places[anew] = torch.rand(count, 2, generator=self.random)
        self.berths[anew] = torch.rand(count, 2, generator=self.random)
        self.speeds[anew] = 0.0
        self.ages[anew] = 0.0
