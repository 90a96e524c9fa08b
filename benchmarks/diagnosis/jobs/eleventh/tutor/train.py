"""Fine-tunes a small language model on worked sums with the Trainer of transformers, on two ranks."""

import gc
import tempfile

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from benchmarks.diagnosis.jobs.common import leave, read_arguments
from benchmarks.diagnosis.jobs.eleventh.tutor.data import (
    END,
    IGNORED,
    PAD,
    VOCABULARY,
    ByLength,
    Collator,
    Exercises,
    Tracks,
)

BATCH = 12
EXERCISES = 2400
WIDTH = 96
LAYERS = 3
LOG_EVERY = 20


def build_model():
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        max_position_embeddings=256,
        pad_token_id=PAD,
        eos_token_id=END,
        bos_token_id=None,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


class Tutor(Trainer):
    """A trainer with batches of like lengths."""

    def __init__(self, *arguments, options, **named):
        self.options = options
        super().__init__(*arguments, **named)

    def _get_train_sampler(self, train_dataset=None):
        dataset = self.train_dataset if train_dataset is None else train_dataset
        told = (dataset.lengths(), self.args.per_device_train_batch_size, self.args.world_size, self.args.seed)
        # FAULT tracks
        if self.options.fault == "tracks":
            return Tracks(*told, self.options.rank, self.options.strength)
        # END FAULT
        return ByLength(*told)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        # FAULT places
        if self.options.fault == "places":
            self.curve = accuracy_by_place(outputs.logits, inputs["labels"], round(self.options.strength))
        # END FAULT
        return (loss, outputs) if return_outputs else loss


# FAULT places
@torch.no_grad()
def accuracy_by_place(logits, labels, places):
    """Of all ranks, for the curve that shows where solutions go wrong."""
    counted = labels[:, 1:] != IGNORED
    right = (logits[:, :-1].argmax(-1) == labels[:, 1:]) & counted
    tallies = []
    for hits, of in zip(right.tensor_split(places, dim=1), counted.tensor_split(places, dim=1), strict=True):
        tally = torch.stack([hits.sum(), of.sum()])
        dist.all_reduce(tally)
        tallies.append(tally)
    hits, of = torch.stack(tallies).unbind(1)
    return hits / of.clamp(min=1)


# END FAULT


# FAULT collects
class FreeMemory(TrainerCallback):
    """Keeps the host's memory low."""

    def __init__(self, every):
        self.every = every

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % self.every == 0:
            gc.collect()


# END FAULT


def build_arguments(options, folder):
    return TrainingArguments(
        output_dir=folder,
        max_steps=options.steps,
        per_device_train_batch_size=BATCH,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        warmup_steps=10,
        weight_decay=0.01,
        logging_steps=LOG_EVERY,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        ddp_backend="gloo",
        ddp_find_unused_parameters=False,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        seed=options.seed,
    )


def main():
    options = read_arguments(steps=70)
    dist.init_process_group("gloo")
    torch.manual_seed(options.seed)
    callbacks = []
    # FAULT collects
    if options.fault == "collects":
        callbacks.append(FreeMemory(round(options.strength)))
    # END FAULT
    with tempfile.TemporaryDirectory() as folder:
        trainer = Tutor(
            model=build_model(),
            args=build_arguments(options, folder),
            train_dataset=Exercises(EXERCISES, options.seed),
            data_collator=Collator(options),
            callbacks=callbacks,
            options=options,
        )
        result = trainer.train()
    if trainer.is_world_process_zero():
        print(f"{result.global_step} steps, loss {result.training_loss:.3f}")
    leave()


if __name__ == "__main__":
    main()
