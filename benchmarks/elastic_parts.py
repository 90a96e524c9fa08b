"""Where the time of an elastic step goes, by part, and that of adding up the gradients of several processes.

    python -m benchmarks.elastic_parts [--steps 40] [--write docs/results/elastic.md]

Prints two Markdown tables. `step-parts`: a step of 4 and of 16 ESTs on one process, and one of plain PyTorch that
accumulates the gradients of as many batches and updates once. Both train the transformer of `benchmarks.elastic`. Steps with
a timer around each part alternate with steps without, and with those of plain PyTorch. A part does not include the parts
within it. Times are CPU times of the thread that trains: medians, and for ESTs their quartiles.

`sum-parts`: 32 MiB of gradients of 2 and of 4 processes, added up by gloo's all-reduce, by the tree, and by the transfers of
the tree alone, in which nothing is added. These alternate, too. Times are by the clock on the wall of rank 0: medians, and
the 95 % interval of their ratio to gloo's. CPU times are those of all processes together; *system* is what the kernel takes,
mostly to copy what is sent and received. *Sent* is what each rank sends, in sizes of the gradient.
"""

import argparse
import functools
import json
import os
import resource
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.elastic import BUCKET, accumulating, alternating, elastic
from benchmarks.figures import Ratio, hardware, table
from benchmarks.in_processes import in_processes
from benchmarks.sections import write_sections
from esprof.core.assignment import Assignment
from esprof.elastic import trainer as trainers
from esprof.elastic.reach.turns import EstValues
from esprof.elastic.reduce.layout import Layout
from esprof.elastic.reduce.tree_reducer import TreeReducer
from esprof.elastic.runtime import support, update
from esprof.elastic.runtime.agreement import JobAgreement
from esprof.elastic.runtime.buffers import Buffers
from esprof.elastic.runtime.est_steps import EstSteps
from esprof.elastic.runtime.placement import EstPlacement
from esprof.elastic.runtime.rng import RngState
from esprof.elastic.runtime.step import StepRunner
from esprof.elastic.runtime.training import TrainingState
from esprof.elastic.runtime.transport import GroupTransport, _GuardedWork
from esprof.elastic.telemetry.spans import StepSpans
from esprof.elastic.verify.edits import Edits

SPANS = {"forward": "forward", "backward": "backward", "optimizer": "update", "data": "batches"}
"""Names of spans of the runtime -> parts that plain PyTorch has, too."""
HOOKS, OTHER = "hooks that see each gradient", "other"
OWN_PARTS: Mapping[str, list[tuple[Any, str]]] = {
    HOOKS: [(EstSteps, "_on_gradient")],
    "copies of gradients into one tensor": [(Layout, "take")],
    "gradients attached and detached": [(Layout, name) for name in ("attach", "detach", "fill", "holds")],
    "sums, and the mean": [(TreeReducer, name) for name in ("begin", "fold", "send_last", "ready", "finish")],
    "random generators": [(RngState, "capture"), (RngState, "restore"), (update, "seed_all"), (trainers, "seed_all")],
    "values that the script may change": [
        *((EstValues, name) for name in ("begin", "enter", "leave", "finish")),
        (TrainingState, "mark"),
        (EstPlacement, "note_changes"),
    ],
    "buffers": [(Buffers, name) for name in ("begin", "enter", "leave", "finish")],
    "versions of tensors": [(Edits, name) for name in ("begin_est_step", "end_est_step", "mark", "of_the_script")],
    "settings and terms": [
        *((owner, "check") for owner in (Layout, EstSteps)),
        (support, "check_optimizers"),
        (JobAgreement, "check_settings"),
        (StepRunner, "_terms"),
    ],
}
"""Parts of the runtime alone -> their functions and methods."""

ALL_REDUCE, TREE, TRANSFERS = "gloo's all-reduce", "tree", "the tree's transfers"
WAITING, ADDING = "waiting", "adding"


class Parts:
    """Times the parts of a program while `is_on`. Each has the time that no part within it has."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.is_on = False
        self._clock = clock
        self._running: list[list[float]] = []
        """(start, time of the parts within it) of each part that is running, s."""
        self._took: dict[str, float] = defaultdict(float)

    def take(self) -> dict[str, float]:
        """The time of each part since the last call, s."""
        taken, self._took = self._took, defaultdict(float)
        return dict(taken)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        if not self.is_on:
            yield
            return
        self._begin()
        try:
            yield
        finally:
            self._end(name)

    def watch(self, name: str, owner: Any, function: str) -> None:
        """Let the calls of a function of a module, or a method of a class, be a part from now on."""
        found = vars(owner)[function]
        is_of_class = isinstance(found, classmethod)
        called = found.__func__ if is_of_class else found

        @functools.wraps(called)
        def call(*arguments: Any, **options: Any) -> Any:
            if not self.is_on:
                return called(*arguments, **options)
            self._begin()  # Not `part`, which takes longer: some are called for each parameter.
            try:
                return called(*arguments, **options)
            finally:
                self._end(name)

        setattr(owner, function, classmethod(call) if is_of_class else call)

    def timed(self, action: Callable[[], object]) -> tuple[Callable[[], None], list[dict[str, float]]]:
        """(a function that runs `action` with timers, the times of the parts in each of its calls)."""
        found: list[dict[str, float]] = []

        def run() -> None:
            self.is_on = True
            action()
            self.is_on = False
            found.append(self.take())

        return run, found

    def _begin(self) -> None:
        self._running.append([self._clock(), 0.0])

    def _end(self, name: str) -> None:
        began, within = self._running.pop()
        took = self._clock() - began
        self._took[name] += took - within
        if self._running:
            self._running[-1][1] += took


@dataclass
class StepTimes:
    """Steps of N ESTs, and of plain PyTorch; s."""

    n_est: int
    own: list[dict[str, float]]
    """Time of each part in each step that was timed by part."""
    plain: list[dict[str, float]]
    timed: list[float]
    """Each step that was timed by part, as a whole."""
    untimed: list[float]
    plain_whole: list[float]

    def row(self, part: str) -> list[str]:
        """(median and quartiles with ESTs, median of plain PyTorch, difference in per cent of its step)."""
        own, plain = ([1e3 * one.get(part, 0.0) for one in steps] for steps in (self.own, self.plain))
        low, _, high = quantiles(own, n=4)
        more = (median(own) - median(plain)) / (1e3 * median(self.plain_whole))
        its = f"{median(plain):.2f}" if any(plain) else "–"
        return [f"{median(own):.2f} ({low:.2f}–{high:.2f})", its, f"{100 * more:+.2f}"]

    def whole(self) -> list[str]:
        ratio = Ratio.of(self.untimed, self.plain_whole)
        own, plain = (f"{1e3 * median(times):.1f}" for times in (self.untimed, self.plain_whole))
        return [own, plain, f"{ratio.value:.3f} ({ratio.low:.3f}–{ratio.high:.3f}) times"]

    def timers(self) -> list[str]:
        more = median(self.timed) - median(self.untimed)
        return [f"{1e3 * more:.2f}", "", f"{100 * more / median(self.plain_whole):+.2f}"]


@dataclass
class Way:
    """What one way of adding up has taken."""

    times: list[float] = field(default_factory=list)
    """By the clock on the wall of rank 0, s."""
    user: float = 0.0
    system: float = 0.0
    """CPU time of all processes, s."""
    parts: list[dict[str, float]] = field(default_factory=list)
    """Time of the parts of rank 0, s."""
    sent: float = 0.0
    """By each rank each time, in sizes of the gradient."""

    def go(self, parts: Parts, action: Callable[[], float]) -> None:
        """Add up once more by `action`, which returns what was sent, and note what that took."""
        cpu, began, parts.is_on = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter(), True
        self.sent = action()
        took, cpu_after, parts.is_on = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF), False
        self.times.append(took)
        self.user += cpu_after.ru_utime - cpu.ru_utime
        self.system += cpu_after.ru_stime - cpu.ru_stime
        self.parts.append(parts.take())


class Transfers(TreeReducer):
    """Moves what the tree moves, and adds nothing."""

    def _write_mean(self, sums: Mapping[Any, Tensor], mean: Tensor) -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40, help="of each kind")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the tables into their sections of this page")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    load = f"load {os.getloadavg()[0]:.1f} before the start"
    of = (
        f"{asked.steps} steps of each kind, one thread a process, on {hardware()}, PyTorch {torch.__version__}, {load}."
    )
    sections = {
        name: f"{rows}\n\n{of}" for name, rows in (("step-parts", step_table(asked)), ("sum-parts", sum_table(asked)))
    }
    print(*sections.values(), sep="\n\n")
    if asked.write:
        write_sections(asked.write, sections)


def step_table(asked: argparse.Namespace) -> str:
    parts = Parts(time.thread_time)
    for name, functions in OWN_PARTS.items():
        for owner, function in functions:
            parts.watch(name, owner, function)
    StepSpans.__call__ = lambda _, what: parts.part(SPANS.get(what, OTHER))  # type: ignore[method-assign]
    both = [step_times(parts, n_est, asked.steps) for n_est in (4, 16)]
    columns = [f">{name}" for one in both for name in (f"{one.n_est} ESTs, ms", "plain, ms", "more, % of its step")]
    rows = [[part, *(cell for one in both for cell in one.row(part))] for part in (*SPANS.values(), *OWN_PARTS, OTHER)]
    rows.append(["timers", *(cell for one in both for cell in one.timers())])
    rows.append(["whole step, without timers", *(cell for one in both for cell in one.whole())])
    return table(["part", *columns], rows)


def step_times(parts: Parts, n_est: int, steps: int) -> StepTimes:
    trainer = elastic(n_est)
    timed, own = parts.timed(trainer.step)
    plain, of_plain = parts.timed(accumulating(n_est, part=parts.part))
    whole, untimed, plain_whole = alternating([timed, trainer.step, plain], steps, time.thread_time)
    trainer.close()
    for found, times in ((own, whole), (of_plain, plain_whole)):
        del found[0]  # Of the turn that is not measured.
        for one, took in zip(found, times, strict=True):
            one[OTHER] = one.get(OTHER, 0.0) + took - sum(one.values())
    return StepTimes(n_est, own, of_plain, whole, untimed, plain_whole)


def sum_table(asked: argparse.Namespace) -> str:
    rows = []
    for world in (2, 4):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "ways.json")
            in_processes(partial(sums, out), world, asked.steps)
            ways = {name: Way(**one) for name, one in json.loads(out.read_text()).items()}
        for name, way in ways.items():
            ratio = Ratio.of(way.times, ways[ALL_REDUCE].times)
            ms = [1e3 * median(one.get(part, 0.0) for one in way.parts) for part in (WAITING, ADDING)]
            cpu = [1e3 * of_all / len(way.times) for of_all in (way.user, way.system)]
            rest = 1e3 * median(way.times) - sum(ms)
            figures = [f"{one:.1f}" for one in (1e3 * median(way.times), *cpu, *ms, rest)]
            rows.append(
                [str(world), name, *figures, f"{way.sent:.2f}", f"{ratio.value:.2f} ({ratio.low:.2f}–{ratio.high:.2f})"]
            )
    own = ("ms", "CPU time, user", "system", f"rank 0: {WAITING}", ADDING, "rest", "sent", "times gloo's")
    return table(["processes", "way", *(f">{name}" for name in own)], rows)


def sums(out: Path, steps: int) -> None:
    """Add up in all ways, which alternate; rank 0 writes what they took to `out`."""
    parts, transport = Parts(time.perf_counter), GroupTransport()
    parts.watch(WAITING, _GuardedWork, "wait")
    parts.watch(ADDING, TreeReducer, "_write_mean")
    layout = Layout(nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8))), transport.world, BUCKET)
    gradient = torch.ones(layout.numel)

    def by_all_reduce() -> float:
        for work in [transport.add(gradient[bucket.start : bucket.stop]) for bucket in layout.buckets]:
            work.wait()
        return 2 * (transport.world - 1) / transport.world

    def by_tree(reducer: TreeReducer) -> float:
        reducer.begin(Assignment.even(transport.world, transport.world), None, {})
        reducer.send_last(transport.rank, gradient)
        reducer.finish()
        return reducer.bytes_sent / gradient.nbytes

    actions: dict[str, Callable[[], float]] = {ALL_REDUCE: by_all_reduce}
    for name, kind in ((TREE, TreeReducer), (TRANSFERS, Transfers)):
        actions[name] = partial(by_tree, kind(layout, transport, transport.world))
    ways: dict[str, Way] = {}
    for _ in range(steps + 1):
        for name, action in actions.items():
            dist.barrier()
            if name in ways:
                ways[name].go(parts, action)
            else:  # The first time is not measured.
                action()
                ways[name] = Way()
    for way in ways.values():
        cpu = torch.tensor([way.user, way.system], dtype=torch.float64)
        dist.all_reduce(cpu)
        way.user, way.system = cpu.tolist()
    if transport.rank == 0:
        out.write_text(json.dumps({name: asdict(way) for name, way in ways.items()}))


if __name__ == "__main__":
    main()
