"""Two recurrent networks and attention of the second to the first."""

import torch
import torch.nn as nn
from data import WORDS


class Translator(nn.Module):
    def __init__(self, width: int = 128, fault: str = "none"):
        super().__init__()
        self.fault = fault
        self.source_words = nn.Embedding(WORDS, width, padding_idx=0)
        self.target_words = nn.Embedding(WORDS, width, padding_idx=0)
        self.encoder = nn.GRU(width, width // 2, bidirectional=True, batch_first=True)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.query = nn.Linear(width, width, bias=False)
        self.mix = nn.Linear(2 * width, width)
        self.out = nn.Linear(width, WORDS)

    def forward(self, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Scores of the words that follow each of the targets."""
        heard, last = self.encoder(self.source_words(sources))
        state = last.transpose(0, 1).reshape(1, len(sources), -1)
        silent = (sources == 0).unsqueeze(1)
        words = self.target_words(targets)
        # FAULT word_by_word
        if self.fault == "word_by_word":
            # As when translating, where the next word is not known yet.
            scores = []
            for place in range(words.shape[1]):
                said, state = self.decoder(words[:, place : place + 1], state)
                fit = (self.query(said) @ heard.transpose(1, 2)).masked_fill(silent, float("-inf"))
                found = torch.softmax(fit, dim=-1) @ heard
                scores.append(self.out(torch.tanh(self.mix(torch.cat([said, found], dim=-1)))))
            return torch.cat(scores, dim=1)
        # END FAULT
        said, _ = self.decoder(words, state)
        fit = (self.query(said) @ heard.transpose(1, 2)).masked_fill(silent, float("-inf"))
        found = torch.softmax(fit, dim=-1) @ heard
        return self.out(torch.tanh(self.mix(torch.cat([said, found], dim=-1))))
