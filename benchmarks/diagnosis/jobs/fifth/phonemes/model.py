"""Two bidirectional LSTM layers over filter banks, and a layer that reads phonemes from them."""

import torch
from torch import nn

BANKS, HIDDEN, PHONEMES = 40, 80, 42


class Recogniser(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.front = nn.Conv1d(BANKS, HIDDEN, 5, 2, 2)
        self.lstm = nn.LSTM(HIDDEN, HIDDEN, 2, bidirectional=True, batch_first=True)
        self.cell = nn.LSTMCell(2 * HIDDEN, HIDDEN)
        self.smooth = nn.LSTM(2 * HIDDEN, HIDDEN, batch_first=True)
        self.out = nn.Linear(HIDDEN, PHONEMES)

    def forward(self, frames: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Log probabilities (batch, time / 2, phonemes) and their lengths."""
        lengths = (lengths + 1) // 2
        hidden = self.front(frames.transpose(1, 2)).relu().transpose(1, 2)
        hidden, _ = self.lstm(hidden)
        # FAULT frame_by_frame
        if self.fault == "frame_by_frame":
            state = None
            smooth = []
            for time in range(hidden.shape[1]):
                state = self.cell(hidden[:, time], state)
                smooth.append(state[0])
            smoothed = torch.stack(smooth, 1)
        # END FAULT
        else:
            smoothed, _ = self.smooth(hidden)
        return self.out(smoothed).log_softmax(2), lengths
