"""Fine-tunes the upper layers of a small Llama on conversations, with Accelerate."""

import logging

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import release_memory
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

from benchmarks.diagnosis.jobs.common import leave, read_arguments
from benchmarks.diagnosis.jobs.tenth.dialog.data import (
    END,
    IGNORED,
    LONGEST,
    PAD,
    VOCABULARY,
    Collate,
    TokenBatches,
    conversations,
)

CONVERSATIONS = 480
LAYERS = 6
FROZEN = 3
WIDTH = 128
LEARNING_RATE = 1e-3
CLIP = 1.0
LOG_EVERY = 20

log = logging.getLogger("dialog")


def build_model() -> LlamaForCausalLM:
    """A model with random weights, in the place of one that is loaded."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=2 * LONGEST,
        pad_token_id=PAD,
        bos_token_id=None,
        eos_token_id=END,
        use_cache=False,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config)


def freeze(model: LlamaForCausalLM, layers: int) -> None:
    """Freeze the embedding and the lowest layers."""
    for module in (model.model.embed_tokens, *model.model.layers[:layers]):
        module.requires_grad_(False)


def tuned_parameters(model: LlamaForCausalLM) -> list[torch.nn.Parameter]:
    """Those of the upper layers, and of the head."""
    modules = (*model.model.layers[FROZEN:], model.model.norm, model.lm_head)
    return [parameter for module in modules for parameter in module.parameters()]


def accuracy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Share of the answers' tokens that are predicted."""
    predicted, wanted = logits[:, :-1].argmax(-1), labels[:, 1:]
    answered = wanted != IGNORED
    return (predicted == wanted)[answered].float().mean()


# FAULT gather
def accuracy_of_all(accelerator: Accelerator, logits: torch.Tensor, labels: torch.Tensor, share: float) -> torch.Tensor:
    """Accuracy over the batches of all ranks."""
    rows = max(round(share * len(labels)), 1)
    for dim in (0, 1):
        logits = accelerator.pad_across_processes(logits[:rows] if dim == 0 else logits, dim=dim)
        labels = accelerator.pad_across_processes(labels[:rows] if dim == 0 else labels, dim=dim, pad_index=IGNORED)
    return accuracy(*accelerator.gather((logits, labels)))


# END FAULT


def main() -> None:
    options = read_arguments(steps=80)
    dist.init_process_group("gloo")
    accelerator = Accelerator(cpu=True)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(options.seed)

    samples = conversations(CONVERSATIONS, options.seed)
    batches = TokenBatches([len(sample["input_ids"]) for sample in samples], options.seed)
    collate = Collate()
    # FAULT rows
    if options.fault == "rows":
        batches.steady = options.strength
    # END FAULT
    # FAULT padding
    if options.fault == "padding":
        collate.multiple = round(options.strength)
    # END FAULT
    loader = DataLoader(samples, batch_sampler=batches, collate_fn=collate)

    model = build_model()
    frozen = FROZEN
    # FAULT thawed
    if options.fault == "thawed":
        frozen -= round(options.strength)
    # END FAULT
    freeze(model, frozen)
    tuned = tuned_parameters(model)
    optimizer = torch.optim.AdamW(tuned, lr=LEARNING_RATE)
    schedule = get_cosine_schedule_with_warmup(optimizer, 10, options.steps * accelerator.num_processes)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

    step, right = 0, torch.zeros(())
    while step < options.steps:
        for batch in loader:
            output = model(**batch)
            accelerator.backward(output.loss)
            accelerator.clip_grad_norm_(tuned, CLIP)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()

            step += 1
            # FAULT gather
            if options.fault == "gather":
                right += accuracy_of_all(accelerator, output.logits.detach(), batch["labels"], options.strength)
            # END FAULT
            if step % LOG_EVERY == 0:
                loss = accelerator.reduce(output.loss.detach(), reduction="mean")
                right = accuracy(output.logits.detach(), batch["labels"])
                if accelerator.is_main_process:
                    log.info("step %d: loss %.3f, accuracy %.3f", step, loss.item(), right.item())
            # FAULT collect
            if options.fault == "collect" and step % round(options.strength) == 0:
                output, batch = release_memory(output, batch)
            # END FAULT
            if step == options.steps:
                break
    leave()


if __name__ == "__main__":
    main()
