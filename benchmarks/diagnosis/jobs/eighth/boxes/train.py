"""A one-stage detector: each cell of a grid says whether it holds a box's centre, and how the box lies."""

import collections
import itertools

import torch
import torch.distributed as dist
from data import SIZE, Scenes, collate
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from benchmarks.diagnosis.jobs.common import leave, read_arguments

BATCH, STRIDE = 10, 8
CELLS = SIZE // STRIDE


def conv(inside, outside, stride=1):
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside), nn.LeakyReLU(0.1)
    )


class Detector(nn.Module):
    def __init__(self, width=28):
        super().__init__()
        self.backbone = nn.Sequential(
            conv(3, width, 2),
            conv(width, width),
            conv(width, 2 * width, 2),
            conv(2 * width, 2 * width),
            conv(2 * width, 4 * width, 2),
            conv(4 * width, 4 * width),
        )
        self.score, self.box = nn.Conv2d(4 * width, 1, 1), nn.Conv2d(4 * width, 4, 1)

    def forward(self, images):
        features = self.backbone(images)
        return self.score(features).squeeze(1), self.box(features)


def assign(boxes):
    """Which cells hold a centre, and the boxes there in units of the stride."""
    held = torch.zeros(len(boxes), CELLS, CELLS)
    wanted = torch.zeros(len(boxes), 4, CELLS, CELLS)
    number = torch.repeat_interleave(torch.arange(len(boxes)), torch.tensor([len(some) for some in boxes]))
    every = torch.cat(boxes)
    centres = (every[:, :2] + every[:, 2:]) / 2
    x, y = (centres / STRIDE).long().clamp(max=CELLS - 1).T
    held[number, y, x] = 1
    wanted[number, :, y, x] = every / STRIDE
    return held, wanted


# FAULT overlap_loop
def assign_by_overlap(boxes, best):
    """Gives each box the cells whose anchors overlap it most."""
    held = torch.zeros(len(boxes), CELLS, CELLS)
    wanted = torch.zeros(len(boxes), 4, CELLS, CELLS)
    for number, some in enumerate(boxes):
        for box in some[:best]:
            most, where = torch.tensor(0.0), (0, 0)
            for y, x in itertools.product(range(0, CELLS, 2), range(0, CELLS, 2)):
                anchor = torch.tensor([x, y, x + 2, y + 2]) * STRIDE
                low, high = torch.max(box[:2], anchor[:2]), torch.min(box[2:], anchor[2:])
                shared = (high - low).clamp(min=0).prod()
                if shared > most:
                    most, where = shared, (y, x)
            held[number, *where] = 1
            wanted[number, :, *where] = box / STRIDE
    return held, wanted


# END FAULT


def losses_of(scores, found, held, wanted):
    where = held[:, None].expand_as(found) > 0
    return {
        "object": F.binary_cross_entropy_with_logits(scores, held),
        "corner": F.l1_loss(found[:, :2][where[:, :2]], wanted[:, :2][where[:, :2]]),
        "size": F.smooth_l1_loss(found[:, 2:][where[:, 2:]], wanted[:, 2:][where[:, 2:]]),
    }


# FAULT counts_by_cell
def share_counts(held, scores, cells):
    """Hits over all ranks in the first cells, a cell at a time."""
    shared = collections.Counter()
    for y, x in itertools.islice(itertools.product(range(CELLS), range(CELLS)), cells):
        right = ((scores[:, y, x] > 0) == (held[:, y, x] > 0)).float()
        for name, value in (("right", right.sum()), ("cells", torch.tensor(float(right.numel())))):
            dist.all_reduce(value)
            shared[name] += value.item()
    return shared["right"] / shared["cells"]


# END FAULT


def main():
    options = read_arguments(steps=80)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(options.seed)
    # FAULT many_threads
    if options.fault == "many_threads":
        torch.set_num_threads(int(options.strength))
    # END FAULT
    model = DDP(Detector())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    loader = DataLoader(Scenes(rank, options), batch_size=BATCH, num_workers=1, collate_fn=collate)
    means = collections.defaultdict(float)
    for step, (images, boxes) in enumerate(itertools.islice(loader, options.steps)):
        held, wanted = assign(boxes)
        # FAULT overlap_loop
        if options.fault == "overlap_loop":
            held, wanted = assign_by_overlap(boxes, int(options.strength))
        # END FAULT
        scores, found = model(images)
        losses = losses_of(scores, found, held, wanted)
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()
        for name, loss in losses.items():
            means[name] = 0.9 * means[name] + 0.1 * loss.item()
        # FAULT counts_by_cell
        if options.fault == "counts_by_cell":
            means["right"] = share_counts(held, scores.detach(), int(options.strength))
        # END FAULT
        if step % 20 == 0 and rank == 0:
            print(step, {name: round(mean, 3) for name, mean in means.items()}, flush=True)
    leave()


if __name__ == "__main__":
    main()
