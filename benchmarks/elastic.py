"""What logical workers (ESTs) cost. One JSON line a figure.

    python -m benchmarks.elastic [--repeats 9]

`switch_pct`: what switching from one EST to the next takes of a step. `telemetry_pct`: what noting that takes.
`ests_vs_one`: a step of N ESTs on one process against N steps of one EST, and against plain PyTorch in the context.
`memory_copies`: copies of all gradients that a process of N ESTs holds beyond one of a single EST. `tree_vs_all_reduce`:
the time that adding up gradients in an order of their own takes against gloo's all-reduce, bucket by bucket, and the bytes
of both.

One thread a process. Times are medians of steps that alternate, so that other work on the machine disturbs both alike; of
one process they are its CPU time, since nothing in it waits.
"""

import argparse
import json
import multiprocessing
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

import esprof
from benchmarks.jobs.gpt import BYTES, CONTEXT, Block
from esprof.elastic import Assignment, ElasticTrainer
from esprof.elastic.reduce.layout import Layout
from esprof.elastic.reduce.tree_reducer import TreeReducer
from esprof.elastic.transport import GroupTransport

MB = 1 << 20
HIDDEN = 192
BATCH = 4
BUCKET = 8 * MB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    switching(options.repeats)
    telling(options.repeats)
    for n_est in (4, 16):
        against_one(n_est, options.repeats)
    memory()
    for world in (2, 4):
        in_processes(reduction, world, options.repeats)


def show(name: str, value: float, unit: str, **context: Any) -> None:
    machine = {"processor": platform.machine(), "cores": os.cpu_count(), "torch": torch.__version__}
    print(json.dumps({"name": name, "value": rounded(value), "unit": unit, "context": context | machine}), flush=True)


def rounded(value: float) -> float:
    return float(f"{value:.4g}")


class Text(Dataset[Tensor]):
    """Bytes drawn at random: what a step takes does not depend on them."""

    def __len__(self) -> int:
        return 1 << 14

    def __getitem__(self, index: int) -> Tensor:
        return torch.randint(BYTES, (CONTEXT + 1,), generator=torch.Generator().manual_seed(index))


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def gpt() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    blocks = (Block(HIDDEN) for _ in range(4))
    model = nn.Sequential(nn.Embedding(BYTES, HIDDEN), *blocks, nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, BYTES))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)


def elastic(n_est: int, telemetry: Path | None = None) -> ElasticTrainer:
    return ElasticTrainer(*gpt(), loss_of, Text(), n_est, batch_size=BATCH, telemetry=telemetry)


def switching(steps: int) -> None:
    """`switch_pct`, by the job's own telemetry."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = elastic(4, Path(folder, "run"))
        for _ in range(steps + 1):
            trainer.step()
        trainer.flush()
        run = esprof.load(Path(folder, "run"))
        events = run.events(0).to_pandas()
    steady = events[events.step > 0]
    took = steady[steady.kind != "step"].groupby(["name", "step"], observed=True).dur_ns.sum()
    whole = median(steady[steady.kind == "step"].dur_ns)
    parts = {
        name: rounded(median(took[name]) / 1e6) for name in ("switch", "stage", "forward", "backward", "optimizer")
    }
    context = {"ests": 4, "step_ms": rounded(whole / 1e6), "ms": parts, "steps": steps}
    show("switch_pct", 100 * median(took["switch"]) / whole, "% of a step", **context)


def telling(repeats: int) -> None:
    """`telemetry_pct`: steps with telemetry against steps without, in CPU time."""
    with tempfile.TemporaryDirectory() as folder:
        steps = [elastic(4).step, elastic(4, Path(folder, "run")).step]
        silent, telling = alternating(steps, 3 * repeats, time.process_time)
    show("telemetry_pct", 100 * (telling / silent - 1), "% of a step", ests=4, repeats=3 * repeats)


def against_one(n_est: int, repeats: int) -> None:
    """`ests_vs_one`: a step of `n_est` ESTs against as many steps of one EST, and of plain PyTorch."""
    one, several, plain = elastic(1), elastic(n_est), plain_steps()

    def of_one() -> None:
        for _ in range(n_est):
            one.step()

    def in_plain_pytorch() -> None:
        for _ in range(n_est):
            plain()

    times = alternating([of_one, several.step, in_plain_pytorch], repeats, time.process_time)
    context = {"step_ms": rounded(1e3 * times[1]), "vs_plain": rounded(times[1] / times[2]), "repeats": repeats}
    show("ests_vs_one", times[1] / times[0], f"times {n_est} steps of one EST", ests=n_est, **context)


def plain_steps() -> Callable[[], None]:
    """A training loop without esprof, of the same batches."""
    model, optimizer = gpt()
    batches = iter(torch.utils.data.DataLoader(Text(), batch_size=BATCH))

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model, next(batches)).backward()
        optimizer.step()

    return step


def alternating(actions: list[Callable[[], Any]], repeats: int, clock: Callable[[], float]) -> list[float]:
    """The median time of each action by this clock, s. The actions take turns; their first turn is not measured."""
    times: list[list[float]] = [[] for _ in actions]
    for repeat in range(repeats + 1):
        for action, taken in zip(actions, times, strict=True):
            begin = clock()
            action()
            if repeat:
                taken.append(clock() - begin)
    return [median(taken) for taken in times]


def memory() -> None:
    """`memory_copies`, by the peak of the resident set; each number of ESTs runs in a process of its own."""
    peaks = {n_est: in_a_process(peak_of, n_est) for n_est in (1, 2, 4, 8, 16)}
    for n_est, (peak, gradient) in peaks.items():
        copies = (peak - peaks[1][0]) / gradient
        context = {"peak_mb": peak // MB, "gradient_mb": gradient // MB, "allowed": n_est.bit_length()}
        show("memory_copies", copies, "gradients", ests=n_est, **context)


def peak_of(n_est: int) -> tuple[int, int]:
    """(peak of the resident set in a step of `n_est` ESTs, size of one copy of the gradients), bytes."""
    torch.set_num_threads(1)
    model = nn.Sequential(*(nn.Linear(1536, 1536) for _ in range(10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9, foreach=False)
    numbers = torch.utils.data.TensorDataset(torch.ones(256, 1536))
    trainer = ElasticTrainer(
        model, optimizer, lambda model, batch: model(batch[0]).square().mean(), numbers, n_est, batch_size=1
    )
    trainer.step()
    Path("/proc/self/clear_refs").write_text("5")  # The peak counts from here.
    trainer.step()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024, trainer.layout.numel * trainer.layout.dtype.itemsize


def in_a_process(action: Callable[..., Any], *arguments: Any) -> Any:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(action, arguments)


def in_processes(action: Callable[[int], None], world: int, repeats: int) -> None:
    """Run `action(repeats)` on so many processes that have found each other."""
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        arguments = (action, world, repeats, Path(folder, "store"))
        processes = [context.Process(target=worker, args=(rank, *arguments)) for rank in range(world)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()


def worker(rank: int, action: Callable[[int], None], world: int, repeats: int, store: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(store), world), rank=rank, world_size=world)
    action(repeats)
    dist.destroy_process_group()
    time.sleep(0.1)  # PyTorch 2.13 may abort a process that ends right after its last collective on gloo.


def reduction(repeats: int) -> None:
    """`tree_vs_all_reduce`, with one EST a process, so that both ways add up as many gradients."""
    transport = GroupTransport()
    layout = Layout(nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8))), transport.world, BUCKET)
    reducer = TreeReducer(layout, transport, transport.world)
    gradient = torch.randn(layout.numel)
    assignment = Assignment.even(transport.world, transport.world)

    def by_tree() -> None:
        dist.barrier()
        reducer.begin(assignment, None, {})
        reducer.send_last(transport.rank, gradient)
        reducer.finish()

    def by_all_reduce() -> None:
        dist.barrier()
        parts = [gradient[bucket.start : bucket.stop] for bucket in layout.buckets]
        for work in [transport.add(part) for part in parts]:
            work.wait()

    tree, all_reduce = alternating([by_tree, by_all_reduce], 5 * repeats, time.perf_counter)
    if transport.rank == 0:
        least = 2 * gradient.nbytes * (transport.world - 1) / transport.world
        context = {
            "tree_ms": rounded(1e3 * tree),
            "all_reduce_ms": rounded(1e3 * all_reduce),
            "mb": gradient.nbytes // MB,
        }
        context |= {"bytes_vs_all_reduce": rounded(reducer.bytes_sent / least), "repeats": 5 * repeats}
        show("tree_vs_all_reduce", tree / all_reduce, "times as long", processes=transport.world, **context)


if __name__ == "__main__":
    main()
