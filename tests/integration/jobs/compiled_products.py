"""Multiply eight pairs of matrices by code of inductor, and print what the knob `compile` reads back afterwards."""

import argparse
import json

import torch
from torch import nn

from esprof.recorder.knobs import KNOBS


class Products(nn.Module):
    """Eight products of matrices at once, each with weights of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(8, 64, 64) / 8)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return torch.bmm(batch, self.weights)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--set", help="value of the knob; without it, the knob is only read")
    parser.add_argument("--eager", action="store_true", help="do not compile the model")
    parser.add_argument("--linear", action="store_true", help="a linear layer, which has no template on a CPU")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch._dynamo.config.suppress_errors = True
    read = KNOBS["compile"].install(options.set)
    model = nn.Linear(64, 64) if options.linear else Products()
    compiled = model if options.eager else torch.compile(model)
    with torch.no_grad():
        compiled(torch.randn(8, 32, 64))
    print(json.dumps(read()))


if __name__ == "__main__":
    main()
