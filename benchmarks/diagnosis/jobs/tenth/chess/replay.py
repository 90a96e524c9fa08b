"""Positions of the latest games, in memory that the loader's worker shares, and batches of them."""

import torch
from torch.utils.data import IterableDataset

PIECES = 12
SQUARES = 64
CANDIDATES = 8
CAPACITY = 16384


class Replay:
    """A ring of positions: bitboards of the pieces, the moves that the search visited, and how the game ended."""

    def __init__(self):
        self.boards = torch.zeros(CAPACITY, PIECES, dtype=torch.int64).share_memory_()
        self.moves = torch.zeros(CAPACITY, CANDIDATES, dtype=torch.int64).share_memory_()
        self.visits = torch.zeros(CAPACITY, CANDIDATES).share_memory_()
        self.results = torch.zeros(CAPACITY, dtype=torch.int64).share_memory_()
        self.added = 0

    def add(self, games, plies=64):
        """Append games; they are drawn by chance, and who has more of the strong pieces tends to win."""
        count = games * plies
        one, two, three = torch.randint(-(2**63), 2**63 - 1, (3, count, PIECES))
        boards = one & two & three
        surplus = unpack(boards[:, :2]).sum((1, 2, 3)) - unpack(boards[:, 6:8]).sum((1, 2, 3))
        where = torch.arange(self.added, self.added + count) % CAPACITY
        self.boards[where] = boards
        self.moves[where] = (SQUARES**2 * torch.rand(count, CANDIDATES) ** 4).long()
        self.visits[where] = torch.rand(count, CANDIDATES).softmax(1)
        self.results[where] = surplus.sign().long() + 1
        self.added += count


def unpack(boards):
    """Planes of ones and zeros, a rank of the board after another."""
    planes = (boards.unsqueeze(-1) >> torch.arange(SQUARES)) & 1
    return planes.view(*boards.shape, 8, 8).float()


def mirror(planes, moves):
    """The same positions with the king's side for the queen's."""
    return planes.flip(-1), moves ^ 0b000111_000111


class Samples(IterableDataset):
    """Batches drawn from the ring, half of them mirrored: as many as a generation has steps."""

    def __init__(self, replay, rows, steps):
        self.replay, self.rows, self.steps = replay, rows, steps

    def __len__(self):
        return self.steps

    def __iter__(self):
        for _ in range(self.steps):
            chosen = torch.randint(CAPACITY, (self.rows,))
            planes, moves = unpack(self.replay.boards[chosen]), self.replay.moves[chosen]
            if torch.rand(()) < 0.5:
                planes, moves = mirror(planes, moves)
            yield planes, moves, self.replay.visits[chosen], self.replay.results[chosen]
