"""A recurrent language model, byte by byte: few gradients, very unlike in size, and computing in many small operations."""

import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.jobs.arguments import Arguments, parse
from benchmarks.jobs.gpt import BYTES, read, write
from benchmarks.jobs.loop import Task, run


class Recurrent(nn.Module):
    """Next-byte logits (batch, 256, context) from bytes (batch, context)."""

    def __init__(self, arguments: Arguments) -> None:
        super().__init__()
        self.embed = nn.Embedding(BYTES, arguments.hidden)
        self.recur = nn.LSTM(arguments.hidden, arguments.hidden, arguments.layers, batch_first=True)
        self.head = nn.Linear(arguments.hidden, BYTES)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.recur(self.embed(tokens))
        logits: Tensor = self.head(states)
        return logits.transpose(1, 2)


if __name__ == "__main__":
    run(Task("lstm", ".txt", write, read, Recurrent, F.cross_entropy), parse(__doc__, hidden=224, layers=3, batch=4))
