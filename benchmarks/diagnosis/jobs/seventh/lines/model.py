"""Reads a line by convolutions and a recurrent layer, and writes its letters by another that attends to it."""

import torch
import torch.nn.functional as F
from data import LETTERS
from torch import nn

WIDTH = 96


class Reader(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.see = nn.Sequential(
            nn.Conv2d(1, 24, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(24, 32, 3, stride=2, padding=1), nn.ReLU()
        )
        self.read = nn.GRU(32 * 4, WIDTH // 2, batch_first=True, bidirectional=True)
        self.letters = nn.Embedding(LETTERS, WIDTH)
        self.write = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.say = nn.Linear(2 * WIDTH, LETTERS)
        self.fault, self.strength = options.fault, options.strength

    def forward(self, pictures, before):
        """Scores of each letter, of shape (batch, letters, LETTERS); `before` are those before each."""
        seen = self.see(pictures)
        read, _ = self.read(seen.permute(0, 3, 1, 2).flatten(2))
        written = self.written(self.letters(before))
        attended = F.scaled_dot_product_attention(written, read, read)
        return self.say(torch.cat([written, attended], dim=2))

    def written(self, letters):
        # FAULT letter_by_letter
        if self.fault == "letter_by_letter":
            state, outputs = None, []
            for letter in range(letters.shape[1]):
                output, state = self.write(letters[:, letter : letter + 1], state)
                outputs.append(output)
            return torch.cat(outputs, dim=1)
        # END FAULT
        return self.write(letters)[0]
