"""The Trainer of transformers: a small GPT-2 on random tokens, with evaluation and checkpoints on the way.

pip install transformers accelerate
esprof record -o run -- torchrun --nproc-per-node 2 examples/stacks/huggingface.py
"""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens(Dataset):
    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(1000, (64,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=1000, n_positions=64, n_embd=128, n_layer=2, n_head=4))
    with tempfile.TemporaryDirectory() as folder:
        plan = TrainingArguments(
            folder,
            max_steps=40,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            eval_strategy="steps",
            eval_steps=20,
            save_steps=20,
            logging_steps=10,
            report_to=[],
            use_cpu=not torch.cuda.is_available(),
        )
        test = torch.utils.data.Subset(Tokens(), range(32))
        Trainer(model, plan, train_dataset=Tokens(), eval_dataset=test).train()


if __name__ == "__main__":
    main()
