"""Many games of catch at once: a ball falls, and a paddle below should be where it lands."""

import numpy as np

SIDE = 20
ACTIONS = 3


class Games:
    def __init__(self, count: int, seed: int, fault: str = "none", strength: float = 0):
        self.draw = np.random.default_rng(seed)
        self.count = count
        self.fault = fault
        self.strength = strength
        self.ball = np.zeros((count, 2))
        self.drift = np.zeros(count)
        self.paddle = np.full(count, SIDE // 2)
        self._restart(np.ones(count, dtype=bool))

    def _restart(self, over: np.ndarray) -> None:
        self.ball[over, 0] = 0
        self.ball[over, 1] = self.draw.uniform(0, SIDE - 1, over.sum())
        self.drift[over] = self.draw.uniform(-1, 1, over.sum())

    def frames(self) -> np.ndarray:
        """What the games look like: games x 1 x rows x columns."""
        frames = np.zeros((self.count, 1, SIDE, SIDE), dtype=np.float32)
        games = np.arange(self.count)
        ball = self.ball.astype(int)
        frames[games, 0, ball[:, 0], ball[:, 1]] = 1
        frames[games, 0, SIDE - 1, self.paddle] = 1
        return frames

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rewards, and which games are over; those begin anew."""
        self.paddle = np.clip(self.paddle + actions - 1, 0, SIDE - 1)
        # FAULT game_by_game
        if self.fault == "game_by_game":
            # In small steps of time, to see where the ball meets a wall.
            parts = round(self.strength)
            for game in range(self.count):
                row, column = self.ball[game]
                drift = self.drift[game]
                for _ in range(parts):
                    row += 1 / parts
                    column += drift / parts
                    if not 0 <= column <= SIDE - 1:
                        column = min(max(column, 0), SIDE - 1)
                        drift = -drift
                self.ball[game] = round(row), column
                self.drift[game] = drift
        # END FAULT
        else:
            self.ball[:, 0] += 1
            self.ball[:, 1] += self.drift
            outside = (self.ball[:, 1] < 0) | (self.ball[:, 1] > SIDE - 1)
            self.drift[outside] *= -1
            self.ball[:, 1] = np.clip(self.ball[:, 1], 0, SIDE - 1)
        over = self.ball[:, 0] >= SIDE - 1
        caught = np.abs(self.ball[:, 1] - self.paddle) < 1.5
        rewards = np.where(over, np.where(caught, 1.0, -1.0), 0.0).astype(np.float32)
        self._restart(over)
        return rewards, over
