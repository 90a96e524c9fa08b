"""Boats that cross a strait among buoys: many at once, as arrays."""

import math

import numpy as np

BOATS, BUOYS, BEAMS = 24, 14, 24
REACH = 0.6


class Strait:
    """Each boat sees how far the next buoy is in each of its beams, its own speed, and where the other shore is."""

    def __init__(self, seed: int, boats: int, fault: str, strength: float) -> None:
        self.chance = np.random.default_rng(seed)
        self.fault, self.slow_beams = fault, round(strength)
        self.buoys = self.chance.uniform(0, 1, (BUOYS, 2))
        self.place = np.zeros((boats, 2))
        self.speed = np.zeros((boats, 2))
        self.age = np.zeros(boats, int)
        self.angles = np.linspace(0, 2 * math.pi, BEAMS, endpoint=False)
        self.begin(np.ones(boats, bool))

    def begin(self, which: np.ndarray) -> None:
        self.place[which] = self.chance.uniform((0, 0), (1, 0.05), (which.sum(), 2))
        self.speed[which] = 0
        self.age[which] = 0

    def act(self, thrust: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What is seen, rewards, and who has ended."""
        before = self.place[:, 1].copy()
        self.speed = 0.9 * self.speed + 0.01 * thrust
        self.place += self.speed
        self.age += 1
        nearest = np.linalg.norm(self.place[:, None] - self.buoys, axis=2).min(1)
        hit = nearest < 0.02
        done = hit | (self.age > 200) | (self.place[:, 1] > 1)
        reward = self.place[:, 1] - before - 0.5 * hit
        self.begin(done)
        return self.see(), reward, done

    def see(self) -> np.ndarray:
        beams = self.look_around() if self.fault == "lookout" else self.beams()
        return np.concatenate([beams, self.speed * 20, self.place], 1).astype(np.float32)

    def beams(self) -> np.ndarray:
        apart = self.buoys - self.place[:, None]
        angle = np.arctan2(apart[..., 1], apart[..., 0]) % (2 * math.pi)
        beam = (angle / (2 * math.pi) * BEAMS).astype(int) % BEAMS
        seen = np.full((len(self.place), BEAMS), REACH)
        np.minimum.at(seen, (np.arange(len(self.place))[:, None], beam), np.hypot(apart[..., 0], apart[..., 1]))
        return seen

    # FAULT lookout
    def look_around(self) -> np.ndarray:
        """Beam for beam and buoy for buoy; the boats beyond the first few at once."""
        seen = self.beams()
        for boat in range(min(self.slow_beams, len(self.place))):
            x, y = self.place[boat]
            for number in range(BEAMS):
                best = REACH
                for across, along in self.buoys:
                    angle = math.atan2(along - y, across - x) % (2 * math.pi)
                    if int(angle / (2 * math.pi) * BEAMS) % BEAMS == number:
                        best = min(best, math.hypot(across - x, along - y))
                seen[boat, number] = best
        return seen

    # END FAULT
