"""What the jobs share: their arguments, a small language model, its batches, and the loop that times the steps."""

import argparse
import itertools
import json
import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.jobs.gpt import BYTES, Block
from benchmarks.jobs.loop import worker

SAMPLES = 512
TRACED = schedule(wait=3, warmup=2, active=4, repeat=1)

Options = argparse.Namespace


def parser(description: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    made.add_argument("--device", choices=("cuda", "cpu"), required=True)
    made.add_argument("--hidden", type=int, default=128, help="width of the model")
    made.add_argument("--layers", type=int, default=4, help="depth of the model")
    made.add_argument("--batch", type=int, default=8, help="sequences a step and rank")
    made.add_argument("--context", type=int, default=64, help="bytes a sequence")
    made.add_argument("--steps", type=int, default=20, help="optimizer steps")
    made.add_argument("--trace", type=Path, help="folder for a trace of torch.profiler of each rank, of steps 5 to 8")
    return made


def together() -> AbstractContextManager[None]:
    """Take part in the job of all ranks that torchrun started, or be alone; with the same weights on all."""
    torch.manual_seed(0)
    return worker(seed=0) if ranks() > 1 else nullcontext()


def ranks() -> int:
    return int(os.environ.get("WORLD_SIZE", 1))


def rank() -> int:
    return int(os.environ.get("RANK", 0))


def network(options: Options) -> nn.Module:
    """Logits (batch, context, 256) of the next byte, from bytes (batch, context); on the device."""
    blocks = (Block(options.hidden) for _ in range(options.layers))
    embed, head = nn.Embedding(BYTES, options.hidden), nn.Linear(options.hidden, BYTES)
    return nn.Sequential(embed, *blocks, nn.LayerNorm(options.hidden), head).to(options.device)


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    """Mean loss of the bytes (batch, context + 1), each but the first being told by those before it."""
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def texts(options: Options, seed: int) -> Tensor:
    """Bytes (SAMPLES, context + 1) drawn at random: what a step takes does not depend on them."""
    return torch.randint(BYTES, (SAMPLES, options.context + 1), generator=torch.Generator().manual_seed(seed))


def batches(options: Options) -> Iterator[Tensor]:
    """Batches in the host's memory, pinned where there is a GPU, without end; others on each rank."""
    samples, pinned = TensorDataset(texts(options, seed=rank())), options.device == "cuda"
    loader = DataLoader(samples, options.batch, shuffle=True, drop_last=True, pin_memory=pinned)
    return (tokens for _ in itertools.count() for (tokens,) in loader)


def carry_out(job: str, losses: Iterator[float], options: Options) -> None:
    """Make the steps. On rank 0, print a JSON line: `step_ms` and `loss` of each, and the most memory held, bytes."""
    step_ms, found = [], []
    with traced(options) as mark:
        before = time.perf_counter()
        for loss in itertools.islice(losses, options.steps):
            mark()
            now = time.perf_counter()
            step_ms.append(round(1e3 * (now - before), 3))
            found.append(loss)
            before = now
    if rank() == 0:
        print(json.dumps({"job": job, "step_ms": step_ms, "loss": found} | memory(options)), flush=True)


def memory(options: Options) -> dict[str, int]:
    held = {"peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    if options.device == "cuda":
        held |= {"peak_allocated": torch.cuda.max_memory_allocated(), "peak_reserved": torch.cuda.max_memory_reserved()}
    return held


@contextmanager
def traced(options: Options) -> Iterator[Callable[[], None]]:
    """Have a few steps traced by torch.profiler, if that was asked for; gives what has to be called at each step's end."""
    if options.trace is None:
        yield lambda: None
        return
    options.trace.mkdir(parents=True, exist_ok=True)
    file = options.trace / f"rank{rank()}.json.gz"
    on_gpu = [ProfilerActivity.CUDA] if options.device == "cuda" else []
    with profile(
        activities=[ProfilerActivity.CPU, *on_gpu],
        schedule=TRACED,
        on_trace_ready=lambda profiled: profiled.export_chrome_trace(str(file)),
        experimental_config=torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True),
    ) as profiled:
        yield profiled.step
