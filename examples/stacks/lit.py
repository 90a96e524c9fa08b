"""Lightning: a module and a Trainer, with the validation that Lightning tries before it trains.

pip install lightning
esprof record -o run -- python examples/stacks/lit.py
"""

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 10))

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        inputs, labels = batch
        return nn.functional.cross_entropy(self.net(inputs), labels)

    def validation_step(self, batch: list[Tensor], number: int) -> None:
        self.log("loss", self.training_step(batch, number), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def loader(samples: int) -> DataLoader:
    return DataLoader(TensorDataset(torch.randn(samples, 128), torch.randint(10, (samples,))), 32)


def main() -> None:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = lightning.Trainer(max_epochs=2, accelerator="auto", devices=2, strategy="ddp", **quiet)
    trainer.fit(Classifier(), loader(1920), loader(320))


if __name__ == "__main__":
    main()
