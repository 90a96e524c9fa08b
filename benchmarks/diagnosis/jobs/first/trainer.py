"""Trains a small BERT from its configuration with the Trainer of transformers.

torchrun --nproc-per-node 2 trainer.py --files /tmp/trainer
"""

import random

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

from benchmarks.diagnosis.jobs.common import read_arguments

WORDS = 500


def reviews(count, seed):
    rng = random.Random(seed)
    for _ in range(count):
        words = [rng.randrange(1, WORDS) for _ in range(rng.randrange(20, 33))]
        yield {"input_ids": words, "labels": words[0] % 2}


class Padded:
    """Batches as long as their longest review."""

    def __init__(self, longest=None):
        self.longest = longest

    def __call__(self, samples):
        length = self.longest or max(len(sample["input_ids"]) for sample in samples)
        ids = torch.zeros(len(samples), length, dtype=torch.long)
        for row, sample in zip(ids, samples, strict=True):
            row[: len(sample["input_ids"])] = torch.tensor(sample["input_ids"])
        labels = torch.tensor([sample["labels"] for sample in samples])
        return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


# FAULT callback
class NormLog(TrainerCallback):
    def __init__(self, share):
        self.share = share
        self.norms = []

    def on_step_end(self, args, state, control, model=None, **kwargs):
        for parameter in model.parameters():
            values = parameter.detach().flatten()[: int(8000 * self.share)].tolist()
            self.norms.append(sum(value * value for value in values) ** 0.5)


# END FAULT


def main():
    options = read_arguments(steps=48, needs_files=True)
    shape = {"hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 384}
    model = BertForSequenceClassification(BertConfig(vocab_size=WORDS, max_position_embeddings=256, **shape))
    callbacks = []
    # FAULT callback
    if options.fault == "callback":
        callbacks.append(NormLog(options.strength))
    # END FAULT
    collate = Padded()
    # FAULT padding
    if options.fault == "padding":
        collate = Padded(round(options.strength))
    # END FAULT
    arguments = TrainingArguments(
        output_dir=str(options.files),
        max_steps=options.steps,
        per_device_train_batch_size=16,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        seed=options.seed,
        logging_steps=1000,
    )
    trainer = Trainer(model, arguments, collate, train_dataset=list(reviews(4000, options.seed)), callbacks=callbacks)
    trainer.train()


if __name__ == "__main__":
    main()
