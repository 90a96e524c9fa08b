import json
import random

import torch
from torch.utils.data import Dataset

USERS, ITEMS, LONGEST = 20_000, 12_000, 30


class Purchases(Dataset):
    """What each user bought: a history, and the item that came next."""

    def __init__(self, options):
        rng = random.Random(options.seed)
        self.options = options
        self.histories = [rng.choices(range(ITEMS), k=rng.randint(5, LONGEST)) for _ in range(6000)]
        self.users = [rng.randrange(USERS) for _ in self.histories]
        # FAULT json_rows
        if options.fault == "json_rows":
            seen = int(options.strength)
            self.lines = [
                json.dumps({"user": user, "items": items, "shown": [rng.randrange(ITEMS) for _ in range(seen)]})
                for user, items in zip(self.users, self.histories, strict=True)
            ]
        # END FAULT

    def __len__(self):
        return len(self.histories)

    def __getitem__(self, index):
        user, items = self.users[index], self.histories[index]
        # FAULT json_rows
        if self.options.fault == "json_rows":
            row = json.loads(self.lines[index])
            user, items = row["user"], row["items"]
        # END FAULT
        return user, items[:-1], items[-1]


def collate(rows):
    users, histories, nexts = zip(*rows, strict=True)
    flat = [item for history in histories for item in history]
    offsets = [0]
    for history in histories[:-1]:
        offsets.append(offsets[-1] + len(history))
    return torch.tensor(users), torch.tensor(flat), torch.tensor(offsets), torch.tensor(nexts), histories
