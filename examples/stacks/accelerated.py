"""A loop of one's own under Accelerate, with accumulated gradients and clipping: a process for each GPU, or one on the CPU.

pip install accelerate
esprof record -o run -- accelerate launch examples/stacks/accelerated.py
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    accelerator = Accelerator(gradient_accumulation_steps=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.randn(5120, 128), torch.randint(10, (5120,)))
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, 32, shuffle=True))
    for inputs, labels in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    accelerator.print(f"loss {accelerator.reduce(loss.detach(), 'mean').item():.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
