"""Contrastive learning of pictures and captions; DDP, and each rank sees the others' features as negatives."""

import copy
import gzip
import io
import threading

import torch
import torch.distributed as dist
import torch.nn.functional as F
from data import Pairs, make_loader, make_pairs
from model import Towers
from torch.nn.parallel import DistributedDataParallel

from benchmarks.diagnosis.jobs.common import leave, read_arguments

arguments = read_arguments(60, needs_files=True)
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(arguments.seed)

model = DistributedDataParallel(Towers())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
pairs = Pairs(make_pairs(arguments.files), arguments.fault, arguments.strength, arguments.seed + rank)
loader = make_loader(pairs, arguments.seed)


def batches():
    epoch = 0
    while True:
        loader.sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def of_all_ranks(features: torch.Tensor) -> torch.Tensor:
    """The features of all ranks; gradients flow into this rank's only."""
    # FAULT gather_rows
    if arguments.fault == "gather_rows":
        gathered = [torch.empty_like(features) for _ in range(world)]
        for rows in torch.arange(len(features)).chunk(round(arguments.strength)):
            pieces = [torch.empty_like(features[rows]) for _ in range(world)]
            dist.all_gather(pieces, features[rows].detach())
            for whole, piece in zip(gathered, pieces, strict=True):
                whole[rows] = piece
    # END FAULT
    else:
        everything = torch.empty(world * len(features), features.shape[1])
        dist.all_gather_single(everything, features.detach().contiguous())
        gathered = list(everything.chunk(world))
    gathered[rank] = features
    return torch.cat(gathered)


writers: list[threading.Thread] = []
hardest: list[int] = []
for step, (pictures, words) in zip(range(arguments.steps), batches(), strict=False):
    picture, sentence, scale = model(pictures, words)
    size = picture.shape[1]
    everything = of_all_ranks(torch.cat([picture, sentence], dim=1))
    all_pictures, all_sentences = everything[:, :size], everything[:, size:]
    truth = torch.arange(len(pictures)) + rank * len(pictures)
    to_text = scale * picture @ all_sentences.T
    loss = (F.cross_entropy(to_text, truth) + F.cross_entropy(scale * sentence @ all_pictures.T, truth)) / 2
    # FAULT hard_negatives
    if arguments.fault == "hard_negatives":
        hardest = []
        for row in range(round(len(pictures) * arguments.strength)):
            best, value = -1, float("-inf")
            for column in range(to_text.shape[1]):
                if column != truth[row].item() and to_text[row, column].item() > value:
                    best, value = column, to_text[row, column].item()
            hardest.append(best)
    # END FAULT
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    # FAULT background_save
    if arguments.fault == "background_save" and rank == arguments.rank and step % round(arguments.strength) == 5:

        def save(state: dict, path: str) -> None:
            raw = io.BytesIO()
            torch.save(state, raw)
            with gzip.open(path, "wb", compresslevel=4) as file:
                file.write(raw.getbuffer())

        for writer in writers:
            writer.join()
        state = copy.deepcopy({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()})
        writers.append(threading.Thread(target=save, args=(state, str(arguments.files / f"saved-{rank}.pt.gz"))))
        writers[-1].start()
    # END FAULT
    if step % 20 == 0 and rank == 0:
        print(f"step {step}: loss {loss.item():.3f}")

for writer in writers:
    writer.join()
leave()
