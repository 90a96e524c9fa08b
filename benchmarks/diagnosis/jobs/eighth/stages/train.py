"""Forecasts load curves with a model of two stages, one a process (1F1B)."""

import csv
import io
import os
import socket
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from model import CHANNELS, LAYERS, PATCH, PATCHES, build_stage
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from benchmarks.diagnosis.jobs.common import leave, read_arguments

STAGES = 2
BATCH, MICROBATCHES = 24, 4
WINDOW = PATCH * PATCHES


def curves(seed, length=4000):
    """Daily and weekly swings with noise."""
    rng = np.random.default_rng(seed)
    hours = np.arange(length)[:, None]
    phase = rng.uniform(0, 6, CHANNELS)
    swings = np.sin(hours / 24 * 2 * np.pi + phase) + 0.5 * np.sin(hours / 168 * 2 * np.pi + phase)
    return (swings + 0.1 * rng.normal(size=(length, CHANNELS))).astype(np.float32)


def windows(series, rng):
    starts = rng.integers(0, len(series) - WINDOW - PATCH, BATCH)
    past = np.stack([series[s : s + WINDOW] for s in starts])
    future = np.stack([series[s + WINDOW : s + WINDOW + PATCH].reshape(-1) for s in starts])
    return torch.from_numpy(past), torch.from_numpy(future)


# FAULT csv_windows
def windows_from_csv(lines, rng, stride):
    """Reads the rows of each window from the text of the export."""
    past, future = [], []
    for start in rng.integers(0, len(lines) - WINDOW - PATCH, BATCH):
        rows = [[0.0] * CHANNELS] * (WINDOW + PATCH)
        text = "".join(lines[start : start + WINDOW + PATCH : stride])
        for number, row in enumerate(csv.DictReader(io.StringIO(text), fieldnames=list("abcdefg"))):
            rows[number * stride : (number + 1) * stride] = [[float(value) for value in row.values()]] * stride
        past.append(rows[:WINDOW])
        future.append([value for row in rows[WINDOW : WINDOW + PATCH] for value in row])
    return torch.tensor(past), torch.tensor(future)


# END FAULT


# FAULT histograms
def histograms(module, writer, step, bins):
    for name, parameter in module.named_parameters():
        for kind, values in (("value", parameter.detach()), ("gradient", parameter.grad)):
            counts, edges = np.histogram(values.numpy(), bins=bins)
            writer.append((step, name, kind, [int(count) for count in counts], [float(edge) for edge in edges]))


# END FAULT


def run(stage, port, options):
    os.environ |= {
        "RANK": str(stage),
        "LOCAL_RANK": str(stage),
        "WORLD_SIZE": str(STAGES),
        "LOCAL_WORLD_SIZE": str(STAGES),
    }
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    # FAULT same_core
    if options.fault == "same_core":
        core = min(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {core})
    # END FAULT
    dist.init_process_group("gloo")
    torch.manual_seed(options.seed)
    cut = LAYERS // 2
    # FAULT crooked_cut
    if options.fault == "crooked_cut":
        cut += round(options.strength) if options.rank == 0 else -round(options.strength)
    # END FAULT
    module = build_stage(stage, cut)
    pipeline = PipelineStage(module, stage, STAGES, torch.device("cpu"))
    schedule = Schedule1F1B(pipeline, MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-4)
    series, rng = curves(options.seed), np.random.default_rng(options.seed)
    lines = [",".join(map(str, row)) + "\n" for row in series]
    writer, began = [], time.perf_counter()
    for step in range(options.steps):
        past, future = windows(series, rng)
        # FAULT csv_windows
        if options.fault == "csv_windows":
            past, future = windows_from_csv(lines, rng, max(1, round(12 / options.strength)))
        # END FAULT
        losses = []
        if stage == 0:
            schedule.step(past)
        else:
            schedule.step(target=future, losses=losses)
        optimizer.step()
        # FAULT histograms
        if options.fault == "histograms" and stage == options.rank:
            histograms(module, writer, step, int(options.strength))
        # END FAULT
        optimizer.zero_grad()
        # FAULT save_often
        if options.fault == "save_often" and step % int(options.strength) == 0:
            with open(options.files / f"stage{stage}.pt", "wb") as file:
                torch.save({"model": module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, file)
                os.fsync(file.fileno())
        # END FAULT
        if losses and step % 20 == 0:
            print(f"step {step} mse {torch.stack(losses).mean():.4f} {time.perf_counter() - began:.1f} s", flush=True)
    leave()


def main():
    options = read_arguments(steps=80, needs_files=True)
    options.files.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(run, args=(port, options), nprocs=STAGES)


if __name__ == "__main__":
    main()
