"""What logical workers (ESTs) cost. One JSON line a figure.

    python -m benchmarks.elastic [--repeats 9] [--only accumulation ddp …]

`ests_vs_accumulation`: a step of N ESTs on one process against plain PyTorch that accumulates the gradients of as
many batches and updates once; what is beyond 1 is what ESTs cost, switching included, on a model with BatchNorm.
`switch_pct`: what of it telemetry calls switching. `telemetry_pct`: what noting that takes. `proof_pct`: what proofs
take by default, on one process and on two: a proof's time beyond that of a step without one, divided by the period.
`watch_pct`: what looking for a new plan takes of such a step, in a file and in a store. `memory_copies`: copies of
all gradients that a process of N ESTs holds beyond one of a single EST. `memory_vs_ddp`: those that each of two
processes with one EST holds in all, and those of DistributedDataParallel with and without `gradient_as_bucket_view`.
`step_vs_ddp`: a whole step with one EST a process against DDP's. `tree_vs_all_reduce`: the time of adding up in an
order of its own against gloo's all-reduce, bucket by bucket. `split_bytes`: what a step sends through the loopback
device on two processes, by how the ESTs are split, against one EST each.

One thread a process. Times are medians of steps that alternate, so that other work on the machine disturbs both alike; `low`
and `high` are the 95 % interval of their ratio. Of one process they are its CPU time, since nothing in it waits.
"""

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

import esprof
from benchmarks.figures import Ratio
from benchmarks.in_processes import in_a_process, in_processes
from benchmarks.jobs.gpt import BYTES, CONTEXT, Block
from esprof.elastic import Assignment, Data, ElasticTrainer, Placement, PlanKey, Proof
from esprof.elastic.plans.source import PlanFile
from esprof.elastic.plans.store import POLL_INTERVAL_S
from esprof.elastic.proof.schedule import ProofSchedule
from esprof.elastic.reduce.layout import Layout
from esprof.elastic.reduce.tree_reducer import TreeReducer
from esprof.elastic.runtime.transport import GroupTransport

MB = 1 << 20
HIDDEN = 192
BATCH = 4
BUCKET = 8 * MB
UNVERIFIED = Proof(prove_every=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--only", nargs="+", choices=MEASUREMENTS, default=list(MEASUREMENTS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.only:
        MEASUREMENTS[name](options.repeats)


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
    norm = nn.BatchNorm1d(CONTEXT)  # So that there are buffers to switch.
    model = nn.Sequential(nn.Embedding(BYTES, HIDDEN), *blocks, norm, nn.Linear(HIDDEN, BYTES))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)


def elastic(n_est: int, telemetry: Path | None = None) -> ElasticTrainer:
    return ElasticTrainer(*gpt(), loss_of, Data(Text(), batch_size=BATCH), n_est, telemetry=telemetry, proof=UNVERIFIED)


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


def telemetry(repeats: int) -> None:
    """`telemetry_pct`: steps with telemetry against steps without, in CPU time."""
    with tempfile.TemporaryDirectory() as folder:
        steps = [elastic(4).step, elastic(4, Path(folder, "run")).step]
        silent, reporting = alternating(steps, 3 * repeats, time.process_time)
    value, low, high = (100 * (one - 1) for one in Ratio.of(reporting, silent))
    show("telemetry_pct", value, "% of a step", low=rounded(low), high=rounded(high), ests=4, repeats=3 * repeats)


def proofs(repeats: int) -> None:
    """`proof_pct`: steps that are all proofs against steps that are none; of two processes by the clock on the wall."""
    is_lone = not dist.is_initialized()
    clock = time.process_time if is_lone else time.perf_counter
    plain, proven = (
        ElasticTrainer(*gpt(), loss_of, Data(Text(), batch_size=BATCH), 4, proof=Proof(prove_every=every)).step
        for every in (0, 1)
    )
    for _ in range(2):  # All ESTs of these run twice.
        plain(), proven()
    usual, proof = (median(times) for times in alternating([plain, proven], 3 * repeats, clock))
    if is_lone or dist.get_rank() == 0:
        world = 1 if is_lone else dist.get_world_size()
        period = ProofSchedule(None, 0, 1, 1, across_ranks=True).period(Assignment.even(4, world))
        context = {"step_ms": rounded(1e3 * usual), "proof_ms": rounded(1e3 * proof), "period": period}
        show("proof_pct", 100 * (proof - usual) / usual / period, "% of the time", ests=4, processes=world, **context)


def watching(steps: int) -> None:
    """`watch_pct`: a plan is looked for once in each step."""
    trainer = elastic(4)
    step_s = median(elapsed_s(trainer.step) for _ in range(steps + 1))
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "plan.json")
        path.write_text("{}")
        for where, source, count, apart_s in (
            ("file", PlanFile(path), 1000, 0.0),
            ("store", PlanKey(store, "plan"), 10, POLL_INTERVAL_S),  # It is asked no more often.
        ):
            looks = []
            for _ in range(count):
                time.sleep(apart_s)
                looks.append(elapsed_s(source.poll))
            show(
                "watch_pct",
                100 * sum(looks) / len(looks) / max(step_s, apart_s),
                "%",
                where=where,
                step_ms=1e3 * step_s,
            )


def elapsed_s(what: Callable[[], object]) -> float:
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


def against_accumulation(n_est: int, repeats: int) -> None:
    """`ests_vs_accumulation`."""
    several, plain = elastic(n_est), accumulating(n_est)
    ours, its = alternating([several.step, plain], 3 * repeats, time.process_time)
    compare("ests_vs_accumulation", ours, its, ests=n_est)


def accumulating(
    count: int,
    wrap: Callable[[nn.Module], nn.Module] = lambda model: model,
    part: Callable[[str], AbstractContextManager[None]] = lambda name: nullcontext(),
) -> Callable[[], None]:
    """A training loop without esprof whose steps each have `count` such batches as an EST has. Each of its parts runs within
    `part` of its name."""
    model, optimizer = gpt()
    model = wrap(model)
    batches = iter(torch.utils.data.DataLoader(Text(), batch_size=BATCH))

    def step() -> None:
        with part("update"):
            optimizer.zero_grad()
        for _ in range(count):
            with part("batches"):
                batch = next(batches)
            with part("forward"):
                loss = loss_of(model, batch)
            with part("backward"):
                (loss / count).backward()
        with part("update"):
            optimizer.step()

    return step


def whole_step(repeats: int) -> None:
    """`step_vs_ddp`, by the clock on the wall: each process waits for the others."""
    world = dist.get_world_size()
    elastic_step, ddp = elastic(world).step, accumulating(1, nn.parallel.DistributedDataParallel)
    ours, its = alternating([elastic_step, ddp], 3 * repeats, time.perf_counter)
    if dist.get_rank() == 0:
        compare("step_vs_ddp", ours, its, processes=world)


def splits(repeats: int) -> None:
    """`split_bytes`, by the counters of the loopback device, which nothing else should use meanwhile."""
    sent = {}
    for parts in ([[0], [1]], [[0, 1], [2, 3]], [[0, 1, 2], [3, 4, 5]], [[0, 1, 2, 3], [4, 5]]):
        n_est = sum(map(len, parts))
        trainer = ElasticTrainer(
            *gpt(),
            loss_of,
            Data(Text(), batch_size=1),
            n_est,
            placement=Placement(assignment=Assignment.of(parts)),
            proof=UNVERIFIED,
        )
        trainer.step()
        dist.barrier()
        before = loopback_bytes()
        for _ in range(repeats):
            trainer.step()
        dist.barrier()
        sent[str(parts)] = (loopback_bytes() - before) / repeats
        trainer.close()
    for parts, each in sent.items():
        if dist.get_rank() == 0:
            ratio = each / sent[str([[0], [1]])]
            show(
                "split_bytes", ratio, "times those of one EST each", split=parts, mb=rounded(each / MB), repeats=repeats
            )


def loopback_bytes() -> int:
    """Bytes that the loopback device has received."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith("lo:"))


def alternating(actions: list[Callable[[], Any]], repeats: int, clock: Callable[[], float]) -> list[list[float]]:
    """The times of each action by this clock, s. The actions alternate; their first turn is not measured."""
    times: list[list[float]] = [[] for _ in actions]
    for repeat in range(repeats + 1):
        for action, taken in zip(actions, times, strict=True):
            begin = clock()
            action()
            if repeat:
                taken.append(clock() - begin)
    return times


def compare(name: str, ours: list[float], its: list[float], **context: Any) -> None:
    """Show how many times as long ours take."""
    ratio = Ratio.of(ours, its)
    spread = {"low": rounded(ratio.low), "high": rounded(ratio.high), "repeats": len(ours)}
    milliseconds = {"ms": rounded(1e3 * median(ours)), "its_ms": rounded(1e3 * median(its))}
    show(name, ratio.value, "times as long", **context, **spread, **milliseconds)


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
    trainer = wide_trainer(n_est)
    trainer.step()
    return peak_in(trainer.step), trainer.layout.numel * trainer.layout.dtype.itemsize


def wide() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Layers whose gradients take far more room than what they compute."""
    model = nn.Sequential(*(nn.Linear(1536, 1536) for _ in range(10)))
    return model, torch.optim.SGD(model.parameters(), lr=1e-9, foreach=False)


def wide_loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return model(batch[0]).square().mean()


def wide_trainer(n_est: int) -> ElasticTrainer:
    numbers = torch.utils.data.TensorDataset(torch.ones(256, 1536))
    return ElasticTrainer(*wide(), wide_loss, Data(numbers, batch_size=1), n_est, proof=UNVERIFIED)


def peak_in(step: Callable[[], Any]) -> int:
    """Peak of the resident set in a step, bytes."""
    Path("/proc/self/clear_refs").write_text("5")  # The peak counts from here.
    step()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024


def memory_of_two() -> None:
    """`memory_vs_ddp`; each way has processes of its own."""
    for way in ("elastic", "ddp", "ddp with views"):
        in_processes(partial(peak_of_two, way), 2, 0)


def peak_of_two(way: str, repeats: int) -> None:
    """Tell the peak of a step on rank 0, in copies of the gradients."""
    if way == "elastic":
        step = wide_trainer(dist.get_world_size()).step
    else:
        model, optimizer = wide()
        ddp = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=way == "ddp with views")

        def step() -> None:
            optimizer.zero_grad()
            wide_loss(ddp, [torch.ones(1, 1536)]).backward()
            optimizer.step()

    for _ in range(3):
        step()
    peak = peak_in(step)
    if dist.get_rank() == 0:
        copies = peak / (10 * 1537 * 1536 * 4)
        show("memory_vs_ddp", copies, "gradients, all else included", way=way, peak_mb=peak // MB)


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
        context = {"mb": gradient.nbytes // MB, "bytes_vs_all_reduce": rounded(reducer.bytes_sent / least)}
        compare("tree_vs_all_reduce", tree, all_reduce, processes=transport.world, **context)


MEASUREMENTS: dict[str, Callable[[int], Any]] = {
    "switch": switching,
    "telemetry": telemetry,
    "proof": lambda repeats: (proofs(repeats), in_processes(proofs, 2, repeats)),
    "watch": watching,
    "accumulation": lambda repeats: [against_accumulation(n_est, repeats) for n_est in (4, 16)],
    "memory": lambda repeats: (memory(), memory_of_two()),
    "ddp": lambda repeats: [in_processes(whole_step, world, repeats) for world in (2, 4)],
    "reduction": lambda repeats: [in_processes(reduction, world, repeats) for world in (2, 4)],
    "splits": lambda repeats: in_processes(splits, 2, repeats),
}
"""What can be measured, so many times or a small multiple of it."""


if __name__ == "__main__":
    main()
