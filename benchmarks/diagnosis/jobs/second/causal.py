"""Fine-tunes a GPT-2 made from its configuration on short texts, with the Trainer of transformers, in one process.

python causal.py --files /tmp/causal
"""

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from benchmarks.diagnosis.jobs.common import read_arguments

WORDS, PAD = 400, 0


class Texts(Dataset):
    def __init__(self, count, width):
        self.count, self.width = count, width

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        length = 22 + index % 9
        words = 1 + (torch.arange(length) * (1 + index % 5) + index) % (WORDS - 1)
        ids = torch.full((self.width,), PAD)
        ids[:length] = words
        mask = torch.zeros(self.width, dtype=torch.long)
        mask[:length] = 1
        return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


class LoggedTrainer(Trainer):
    rows = 0

    # FAULT loss_log
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        for row in outputs["logits"].detach()[: self.rows]:
            for scores in row.tolist():
                sorted(range(len(scores)), key=scores.__getitem__)[-5:]
        return (loss, outputs) if return_outputs else loss

    # END FAULT


def main():
    options = read_arguments(steps=48, needs_files=True)
    torch.set_num_threads(1)
    width = 32
    # FAULT fixed_width
    if options.fault == "fixed_width":
        width = round(options.strength)
    # END FAULT
    # FAULT loss_log
    if options.fault == "loss_log":
        LoggedTrainer.rows = round(options.strength)
    # END FAULT
    config = GPT2Config(vocab_size=WORDS, n_positions=256, n_embd=96, n_layer=3, n_head=4)
    arguments = TrainingArguments(
        str(options.files),
        max_steps=options.steps,
        per_device_train_batch_size=12,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        seed=options.seed,
    )
    LoggedTrainer(GPT2LMHeadModel(config), arguments, train_dataset=Texts(2000, width)).train()


if __name__ == "__main__":
    main()
