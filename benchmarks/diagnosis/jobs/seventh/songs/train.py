"""Learns which clips belong to one song by contrast among all ranks' clips, by DDP; each rank has a core of its own.

torchrun --nproc-per-node 2 train.py --files /tmp/songs
"""

import os
import subprocess
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from data import Clips, make_clips
from model import Encoder
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.diagnosis.jobs.common import leave, read_arguments

BATCH = 28
TEMPERATURE = 0.2


def two_views(clips):
    """Each clip twice, louder or softer and shifted in time."""
    gains = 0.5 + torch.rand(2 * len(clips), 1)
    shifted = [clips.roll(int(shift), dims=1) for shift in torch.randint(0, 4000, (2,))]
    return torch.cat(shifted) * gains


def gathered(vectors):
    """The vectors of all ranks, those of this one with their gradient, and where these begin."""
    every = [torch.empty_like(vectors) for _ in range(dist.get_world_size())]
    dist.all_gather(every, vectors.detach())
    every[dist.get_rank()] = vectors
    return torch.cat(every), dist.get_rank() * len(vectors)


def contrast(vectors, options):
    """How badly the other view of a clip is told from all other clips."""
    every, begin = gathered(vectors)
    rows = torch.arange(len(vectors))
    partner = begin + (rows + len(vectors) // 2) % len(vectors)
    # FAULT row_by_row
    if options.fault == "row_by_row":
        losses = []
        for row in rows:
            others = torch.cat([every[: begin + row], every[begin + row + 1 :]])
            alike = F.cosine_similarity(vectors[row], others, dim=1)
            own = F.cosine_similarity(vectors[row], every[partner[row]], dim=0)
            losses.append(torch.logsumexp(alike / TEMPERATURE, 0) - own / TEMPERATURE)
        return torch.stack(losses).mean()
    # END FAULT
    alike = vectors @ every.T / TEMPERATURE
    alike[rows, begin + rows] = -torch.inf
    return F.cross_entropy(alike, partner)


# FAULT other_job
def start_other_job(core, share):
    """Another job's process on the core, which computes for that share of the time."""
    code = "import sys, time\ns = float(sys.argv[1])\nwhile True:\n e = time.process_time() + s / 100\n"
    code += " while time.process_time() < e: pass\n time.sleep((1 - s) / 100)"
    return subprocess.Popen(["taskset", "-c", str(core), sys.executable, "-c", code, str(share)])


# END FAULT


def main():
    options = read_arguments(steps=70, needs_files=True)
    core = sorted(os.sched_getaffinity(0))[int(os.environ.get("LOCAL_RANK", 0)) % len(os.sched_getaffinity(0))]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(options.seed + rank)
    torch.set_num_threads(1)
    file = options.files / "clips.npy"
    if rank == 0 and not file.exists():
        make_clips(file)
    dist.barrier()
    os.sched_setaffinity(0, {core})
    clips = Clips(file, options, rank)
    sampler = DistributedSampler(clips, seed=options.seed)
    loader = DataLoader(clips, BATCH, sampler=sampler, drop_last=True, num_workers=1, persistent_workers=True)
    model = DistributedDataParallel(Encoder(options))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True)
    other = None
    # FAULT other_job
    if options.fault == "other_job" and rank == options.rank:
        other = start_other_job(core, options.strength)
    # END FAULT
    bank = torch.zeros(round(options.strength), 64)
    done = epoch = 0
    while done < options.steps:
        sampler.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad()
            vectors = model(two_views(batch))
            loss = contrast(vectors, options)
            loss.backward()
            optimizer.step()
            # FAULT bank_of_lists
            if options.fault == "bank_of_lists":
                bank = torch.cat([vectors.detach(), bank])[: len(bank)]
                banks = [None] * dist.get_world_size()
                dist.all_gather_object(banks, bank.tolist())
                bank = torch.tensor(banks).mean(dim=0)
            # END FAULT
            done += 1
            if done == options.steps:
                break
        epoch += 1
    if other:
        other.kill()
    if rank == 0:
        print(f"{done} steps, loss {loss.item():.3f}")
    leave()


if __name__ == "__main__":
    main()
