"""Fine-tunes a retriever with the passages of all ranks as negatives, by DDP; its lower layers stay as they are.

torchrun --nproc-per-node 2 train.py --files /tmp/retrieval
"""

from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from benchmarks.diagnosis.jobs.common import leave, read_arguments
from benchmarks.diagnosis.jobs.ninth.retrieval import data

WIDTH = 128
LAYERS = 5
FROZEN = 3
BATCH = 14
TEMPERATURE = 0.07
LONGEST = 128


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(data.WORDS, WIDTH, padding_idx=data.PAD)
        self.places = nn.Embedding(LONGEST, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(LAYERS)
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens):
        padding = tokens == data.PAD
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=padding)
        present = (~padding).unsqueeze(-1)
        mean = (self.norm(x) * present).sum(1) / present.sum(1)
        return F.normalize(self.out(mean), dim=-1)

    def parts(self):
        """From the bottom to the top."""
        return [nn.ModuleList([self.words, self.places]), *self.layers, nn.ModuleList([self.norm, self.out])]


class Retriever(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, questions, passages):
        return self.encoder(questions), self.encoder(passages)


def freeze(parts):
    for part in parts:
        part.requires_grad_(False)


def gathered(mine):
    """The embeddings of all ranks; gradients flow through this rank's."""
    everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, mine.detach())
    everyones[dist.get_rank()] = mine
    return torch.cat(everyones)


def contrastive(questions, passages):
    scores = questions @ gathered(passages).T / TEMPERATURE
    right = torch.arange(len(questions)) + dist.get_rank() * len(questions)
    return F.cross_entropy(scores, right), (scores.argmax(1) == right).float().mean()


# FAULT norms
def gradient_report(model, kinds):
    """Statistics of each parameter's gradient over all ranks."""
    statistics = {"norm": torch.Tensor.norm, "mean": torch.Tensor.mean, "std": torch.Tensor.std}
    report = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            continue
        for kind in list(statistics)[:kinds]:
            value = statistics[kind](parameter.grad)
            dist.all_reduce(value, op=dist.ReduceOp.SUM)
            report[f"{name}/{kind}"] = value.item() / dist.get_world_size()
    return report


# END FAULT


def epochs(loader, sampler):
    while True:
        yield from loader
        sampler.epoch += 1


def main():
    options = read_arguments(steps=66, needs_files=True)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed)

    pairs = data.Pairs(data.prepare(options.files))
    sampler = data.Batches(pairs.lengths, BATCH, rank, ranks, options.seed)
    # FAULT own_order
    if options.fault == "own_order":
        sampler = data.ShuffledBatches(pairs.lengths, BATCH, rank, ranks, options.seed)
        sampler.share = options.strength
    # END FAULT
    loading = {"collate_fn": data.collate, "num_workers": 1, "prefetch_factor": 4, "persistent_workers": True}
    # FAULT padding
    if options.fault == "padding":
        loading["collate_fn"] = partial(data.collate, multiple=round(options.strength))
    # END FAULT
    # FAULT rounds
    if options.fault == "rounds":
        sampler.per_epoch = round(options.strength)
        loading["persistent_workers"] = False
    # END FAULT
    loader = DataLoader(pairs, batch_sampler=sampler, **loading)

    encoder = Encoder()
    lower, upper = encoder.parts()[: 1 + FROZEN], encoder.parts()[1 + FROZEN :]
    # FAULT unfrozen
    if options.fault == "unfrozen":
        lower = lower[: -round(options.strength)]
    # END FAULT
    freeze(lower)
    model = DistributedDataParallel(Retriever(encoder))
    optimizer = torch.optim.AdamW(nn.ModuleList(upper).parameters(), lr=3e-4)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=20)

    report = {}
    hits = torch.zeros(())
    for step, (questions, passages) in zip(range(options.steps), epochs(loader, sampler), strict=False):
        loss, right = contrastive(*model(questions, passages))
        optimizer.zero_grad()
        loss.backward()
        # FAULT norms
        if options.fault == "norms":
            report = gradient_report(model, round(options.strength))
        # END FAULT
        nn.utils.clip_grad_norm_(nn.ModuleList(upper).parameters(), 1.0)
        optimizer.step()
        schedule.step()
        hits += right
        if rank == 0 and step % 20 == 19:
            print(f"step {step + 1}: loss {loss.item():.3f}, hits {hits.item() / 20:.2f}", *report.items())
            hits.zero_()
    leave()


if __name__ == "__main__":
    main()
