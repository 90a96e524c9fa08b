"""Trains an encoder of voices for speaker verification, contrasting the clips of all ranks, by Lightning Fabric."""

import os
from collections import deque
from functools import partial

import torch
import torch.nn.functional as F
from lightning.fabric import Fabric

from benchmarks.diagnosis.jobs.common import leave, read_arguments
from benchmarks.diagnosis.jobs.eleventh.voices.data import RATE, Clips, recordings
from benchmarks.diagnosis.jobs.eleventh.voices.model import Encoder

SPEAKERS = 12
LENGTH = RATE
SCALE = 20.0
MARGIN = 0.1


# FAULT gathers
def gather_in_parts(fabric, parts, embeddings):
    """The embeddings of all ranks, gathered a few clips at a time."""
    return torch.cat([fabric.all_gather(part, sync_grads=True) for part in embeddings.tensor_split(parts)], dim=1)


# END FAULT


# FAULT scoring
@torch.no_grad()
def equal_error_rate(scores, is_same, thresholds):
    """The error rate at the threshold where as many are accepted falsely as rejected falsely."""
    same, other = scores[is_same], scores[~is_same]
    best, rate = 2.0, 1.0
    for threshold in torch.linspace(-1, 1, thresholds):
        false_accepts = (other >= threshold).float().mean().item()
        false_rejects = (same < threshold).float().mean().item()
        if abs(false_accepts - false_rejects) < best:
            best, rate = abs(false_accepts - false_rejects), (false_accepts + false_rejects) / 2
    return rate


# END FAULT


def contrast(similarities, mine, everyone, rank):
    """Cross-entropy of each clip's other clip against those of all other speakers; a margin makes it harder."""
    itself = torch.arange(len(mine)) + rank * len(mine)
    is_same = mine[:, None] == everyone
    is_itself = F.one_hot(itself, len(everyone)).bool()
    logits = SCALE * (similarities - MARGIN * is_same).masked_fill(is_itself, -1.0)
    partner = torch.arange(len(mine)).view(-1, 2).flip(1).flatten() + rank * len(mine)
    logits = logits.masked_fill(is_same & ~F.one_hot(partner, len(everyone)).bool(), -SCALE)
    return F.cross_entropy(logits, partner), is_same & ~is_itself


def build(options, fabric):
    encoder = Encoder()
    # FAULT double
    if options.fault == "double":
        encoder.blocks[-1].double()
        encoder.pooling.double()
        encoder.embed.double()
    # END FAULT
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-3, weight_decay=1e-4)
    return fabric.setup(encoder, optimizer)


def main():
    options = read_arguments(steps=70, needs_files=True)
    fabric = Fabric(accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy="ddp")
    fabric.launch()
    rank = fabric.global_rank
    torch.manual_seed(options.seed)
    model, optimizer = build(options, fabric)
    clips = Clips(recordings(options.files), 1000 * options.seed + rank)
    loss_sum = torch.zeros(())
    # FAULT snapshots
    kept = deque(maxlen=round(options.strength))
    # END FAULT
    for step in range(options.steps):
        length = LENGTH
        # FAULT lengths
        if options.fault == "lengths":
            is_long = torch.randint(2, (), generator=clips.generator)
            length = round(LENGTH * (1 + (options.strength if is_long else -options.strength)))
        # END FAULT
        waves, speakers = clips.draw(SPEAKERS, length)
        optimizer.zero_grad()
        embeddings = model(waves)
        everyone = fabric.all_gather(speakers).flatten()
        gather = partial(fabric.all_gather, sync_grads=True)
        # FAULT gathers
        if options.fault == "gathers":
            gather = partial(gather_in_parts, fabric, round(options.strength))
        # END FAULT
        gathered = gather(embeddings).reshape(len(everyone), -1)
        similarities = embeddings @ gathered.T
        loss, is_same = contrast(similarities, speakers, everyone, rank)
        # FAULT scoring
        if options.fault == "scoring":
            error = equal_error_rate(similarities, is_same, round(options.strength))
            if step % 20 == 0:
                fabric.print(f"step {step}: equal error rate {error:.3f}")
        # END FAULT
        fabric.backward(loss)
        optimizer.step()
        loss_sum += loss.detach()
        # FAULT snapshots
        if options.fault == "snapshots" and step % 2 == 0:
            kept.append({name: value.clone() for name, value in model.state_dict().items()})
            state = {"model": model, "optimizer": optimizer, "to_average": list(kept)}
            fabric.save(options.files / "last.ckpt", state)
        # END FAULT
        if step % 20 == 19:
            fabric.print(f"step {step}: loss {loss_sum.item() / 20:.3f}")
            loss_sum.zero_()
    leave()


if __name__ == "__main__":
    main()
