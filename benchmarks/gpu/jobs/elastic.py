"""Trains a small language model by logical workers on one device, and writes down what every bit was after each step."""

import os
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.gpu.jobs.common import Options, carry_out, loss_of, network, parser, texts, together
from esprof.elastic import Data, ElasticTrainer, Proof


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--ests", type=int, required=True, help="logical workers")
    arguments.add_argument("--hashes", type=Path, help="file for the hashes of all bits")
    options = arguments.parse_args()
    # cuBLAS reads it when it is first used, which is before the trainer is made where anything ran on the device.
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    with together():
        carry_out("elastic", steps(options), options)


def steps(options: Options) -> Iterator[float]:
    def loss_on_device(model: nn.Module, tokens: Tensor) -> Tensor:
        return loss_of(model, tokens.to(options.device))

    model = network(options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    trainer = ElasticTrainer(
        model,
        optimizer,
        loss_on_device,
        Data(texts(options, seed=0), batch_size=options.batch),
        options.ests,
        proof=Proof(hash_log=options.hashes),
    )
    while True:
        yield trainer.step().loss


if __name__ == "__main__":
    main()
