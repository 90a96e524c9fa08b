"""A job on one rank that takes padded batches as tokenizers make them: the half of each sequence is padding."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

LENGTH = 32


class Sentences(Dataset):
    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        mask = (torch.arange(LENGTH) < LENGTH // 2).long()
        return {"input_ids": mask * (index % 50), "attention_mask": mask}


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    words, layers = nn.Embedding(64, 256), nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))
    optimizer = torch.optim.SGD([*words.parameters(), *layers.parameters()], lr=1e-3)
    for step, batch in enumerate(DataLoader(Sentences(), batch_size=16)):
        if step == 12:
            break
        optimizer.zero_grad()
        loss = (layers(words(batch["input_ids"])) * batch["attention_mask"][..., None]).square().mean()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
