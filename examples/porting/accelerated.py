"""The loop of `examples/stacks/accelerated.py` made elastic: accumulation, clipping and mixed precision are options.

torchrun --nproc-per-node 2 examples/porting/accelerated.py
"""

import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from esprof.elastic import Data, ElasticTrainer, Gradients

WORKERS = 2


def loss_of(model: nn.Module, batch: list[Tensor]) -> Tensor:
    inputs, labels = batch
    return nn.functional.cross_entropy(model(inputs), labels)


def main() -> None:
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    samples = TensorDataset(torch.randn(5120, 128), torch.randint(10, (5120,)))
    trainer = ElasticTrainer(
        model,
        optimizer,
        loss_of,
        Data(samples, batch_size=32, accumulate=2),  # Accelerator(gradient_accumulation_steps=2)
        n_est=WORKERS,
        gradients=Gradients(
            clip_norm=1.0
        ),  # clip_grad_norm_(…, 1.0); Accelerator(mixed_precision="bf16") is amp="bf16"
    )
    for result in trainer.fit(epochs=1):
        last = result
    if dist.get_rank() == 0:
        print(f"loss {last.loss:.6f}")
    dist.destroy_process_group()
    time.sleep(0.5)  # PyTorch 2.13 may abort a process that ends right after its last collective on gloo.


if __name__ == "__main__":
    main()
