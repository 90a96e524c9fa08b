"""Trains the decoder of a U-Net to segment nuclei in crops of slides, by DDP."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from benchmarks.diagnosis.jobs.common import leave, read_arguments
from benchmarks.diagnosis.jobs.eleventh.nuclei.data import CROP, Crops, Elastic, slides
from benchmarks.diagnosis.jobs.eleventh.nuclei.model import UNet

BATCH = 6
HELD_OUT = 2
VALIDATE_EVERY = 40


# FAULT overlay
def outline(image, mask):
    """The image as rows of colours, with the edges of the mask in yellow."""
    rows = []
    for y in range(CROP):
        row = []
        for x in range(CROP):
            inside = mask[y][x]
            is_edge = inside and not (x and y and mask[y - 1][x] and mask[y][x - 1])
            row.append((255, 255, 0) if is_edge else tuple(int(255 * channel[y][x]) for channel in image))
        rows.append(row)
    return rows


def panels(images, logits, count):
    """Pictures for the log: what is predicted for the first crops."""
    masks = logits[:count].argmax(dim=1).tolist()
    return [outline(image, mask) for image, mask in zip(images[:count].tolist(), masks, strict=True)]


# END FAULT


def dice_loss(logits, masks):
    inside = logits.softmax(dim=1)[:, 1]
    overlap = (inside * masks).sum()
    return 1 - (2 * overlap + 1) / (inside.sum() + masks.sum() + 1)


@torch.no_grad()
def validate(model, images, masks):
    """Mean Dice score over the ranks, each of which has its own crops."""
    model.eval()
    score = 1 - dice_loss(model(images), masks)
    model.train()
    dist.all_reduce(score)
    return score.item() / dist.get_world_size()


def held_out_crops(images, masks, count, rank):
    crops = Crops(images[-HELD_OUT:], masks[-HELD_OUT:], count, seed=10**6 * (1 + rank))
    pairs = [crops[number] for number in range(count)]
    return tuple(torch.stack(parts) for parts in zip(*pairs, strict=True))


def build(options, rank):
    net = UNet()
    net.freeze()
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    # FAULT unfrozen
    if options.fault == "unfrozen":
        net.requires_grad_(True)
    # END FAULT
    # FAULT recompute
    if options.fault == "recompute":
        net.recomputed = round(options.strength)
    # END FAULT
    return DistributedDataParallel(net), torch.optim.AdamW(trained, lr=2e-3)


def load(options, images, masks, rank):
    warp = None
    # FAULT elastic
    if options.fault == "elastic":
        warp = Elastic(round(options.strength))
    # END FAULT
    seed = 10**5 * (2 * options.seed + rank)
    crops = Crops(images[:-HELD_OUT], masks[:-HELD_OUT], BATCH * options.steps, seed, warp)
    return DataLoader(crops, BATCH, num_workers=1, prefetch_factor=4)


def main():
    options = read_arguments(steps=70, needs_files=True)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(options.seed)
    images, masks = slides(options.files)
    model, optimizer = build(options, rank)
    loader = load(options, images, masks, rank)
    validate_every, count = VALIDATE_EVERY, BATCH
    # FAULT validation
    if options.fault == "validation":
        validate_every, count = 4, round(options.strength)
    # END FAULT
    held_out = held_out_crops(images, masks, count, rank)
    loss_sum = torch.zeros(())
    for step, (crops, targets) in enumerate(loader, start=1):
        optimizer.zero_grad()
        logits = model(crops)
        loss = F.cross_entropy(logits, targets) + dice_loss(logits, targets)
        # FAULT overlay
        if options.fault == "overlay" and rank == options.rank:
            pictures = panels(crops, logits, round(options.strength))
            if step % VALIDATE_EVERY == 0:
                torch.save(pictures, options.files / "pictures.pt")
        # END FAULT
        loss.backward()
        optimizer.step()
        loss_sum += loss.detach()
        if step % validate_every == 0:
            score = validate(model, *held_out)
            if rank == 0:
                print(f"step {step}: loss {loss_sum.item() / validate_every:.3f}, dice {score:.3f}")
            loss_sum.zero_()
    leave()


if __name__ == "__main__":
    main()
