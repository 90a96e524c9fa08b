"""The module of `examples/stacks/lit.py` trained elastically: what it says of a step and of its optimizer stays.

torchrun --nproc-per-node 2 examples/porting/lit.py
"""

import time

import lightning
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from esprof.elastic import Data, ElasticTrainer

WORKERS = 2


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 10))

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        inputs, labels = batch
        return nn.functional.cross_entropy(self.net(inputs), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def loss_of(module: Classifier, batch: list[Tensor]) -> Tensor:
    """The number of the batch is Lightning's own; a step that needs it keeps count in `after_step`."""
    return module.training_step(batch, 0)


def main() -> None:
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    module = Classifier()
    samples = TensorDataset(torch.randn(1920, 128), torch.randint(10, (1920,)))
    data = Data(samples, batch_size=32)
    trainer = ElasticTrainer(module, module.configure_optimizers(), loss_of, data, n_est=WORKERS)
    for result in trainer.fit(epochs=2):
        last = result
    validate(module)
    if dist.get_rank() == 0:
        print(f"loss {last.loss:.6f}")
    dist.destroy_process_group()
    time.sleep(0.5)  # PyTorch 2.13 may abort a process that ends right after its last collective on gloo.


def validate(module: Classifier) -> None:
    """What Lightning does between epochs: between two steps, as often as it pleases."""
    module.eval()
    with torch.no_grad():
        module.training_step([torch.randn(320, 128), torch.randint(10, (320,))], 0)
    module.train()


if __name__ == "__main__":
    main()
