"""What an open page and the tuning loop cost a running elastic job. One JSON line a figure.

    python -m benchmarks.page_and_tuner [--blocks 20] [--steps 10]

A job of two processes trains the transformer of `benchmarks.elastic` with two ESTs each, one thread a process. `esprof tune`
has ended its rounds and waits for a change of the steps; `esprof serve` has one open page. Blocks of steps alternate in
which these processes run, and in which SIGSTOP holds them.

`page_and_tuner_pct`: how much longer the mean step of a block is while they run than in the block after it: median over
these pairs, with its 95 % interval. `job_pct`: what the job does for them in a step: it looks for a plan and for a request,
and writes the step down. `cpu_pct`: the CPU time of each process while it runs, in per cent of one CPU.
"""

import argparse
import os
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, median

import torch.distributed as dist

from benchmarks.elastic import BATCH, UNVERIFIED, Text, elapsed_s, gpt, loss_of, rounded, show
from benchmarks.figures import Ratio
from benchmarks.in_processes import in_processes
from esprof.elastic import Data, ElasticTrainer, Placement
from esprof.elastic.plans.source import PlanFile
from esprof.elastic.telemetry.viewers import RunViewers
from esprof.run.logs import ROUNDS, LiveStep
from esprof.verbs import command_line

MAX_STEPS_OF_ROUNDS = 1500
CALLS = 2000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=20, help="of each kind")
    parser.add_argument("--steps", type=int, default=10, help="of a block")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        in_processes(partial(job, Path(folder, "run"), asked.steps), 2, asked.blocks)


class Helpers:
    """The tuning loop, the page, and a visitor of the page, as processes of their own."""

    def __init__(self, run: Path) -> None:
        self._run = run
        quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.processes = {
            "tuner": subprocess.Popen(command_line("tune", "--attach", str(run), "-q"), **quiet),
            "page": subprocess.Popen(command_line("serve", str(run), "--port", "0"), **quiet),
        }
        page = self.processes["page"]
        assert page.stdout is not None
        self._visitor = get_context("spawn").Process(target=visit, args=(page.stdout.readline().decode().strip(),))
        self._visitor.start()

    def have_settled(self) -> bool:
        """Whether the tuning loop has found nothing more to advise."""
        rounds = ROUNDS.read(self._run)
        return bool(rounds) and rounds[-1].outcome == "nothing"

    def send(self, number: signal.Signals) -> None:
        for process in self.processes.values():
            process.send_signal(number)

    def cpu_s(self) -> dict[str, float]:
        """CPU time of each process so far, s."""
        return {name: cpu_s(process.pid) for name, process in self.processes.items()}

    def end(self) -> None:
        self._visitor.kill()
        for process in self.processes.values():
            process.kill()
            process.wait()


def visit(address: str) -> None:
    """Have the page open: read its events until the end."""
    with urllib.request.urlopen(f"{address}jobs/1/events") as events:
        while events.readline():
            pass


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def job(run: Path, steps: int, blocks: int) -> None:
    plan = run / "plan.json"
    data = Data(Text(), batch_size=BATCH)
    trainer = ElasticTrainer(*gpt(), loss_of, data, 4, telemetry=run, placement=Placement(plan=plan), proof=UNVERIFIED)
    helpers = Helpers(run) if dist.get_rank() == 0 else None
    try:
        while not trainer.agree(
            helpers is not None and (helpers.have_settled() or trainer.next_step > MAX_STEPS_OF_ROUNDS)
        ):
            trainer.step()
        times, used = in_blocks(trainer, helpers, steps, blocks)
    finally:
        if helpers is not None:
            helpers.end()
    if helpers is not None:
        report(run, times, used)


def in_blocks(
    trainer: ElasticTrainer, helpers: Helpers | None, steps: int, blocks: int
) -> tuple[dict[bool, list[float]], dict[str, float]]:
    """(the mean step of each block with the processes, and of each without, s; the share of a CPU that each takes)."""
    times: dict[bool, list[float]] = {True: [], False: []}
    used: dict[str, float] = {}
    ran_s = 0.0
    for block in range(2 * blocks):
        run = block % 2 == 0
        if helpers is not None:
            helpers.send(signal.SIGCONT if run else signal.SIGSTOP)
        dist.barrier()
        before, began = helpers.cpu_s() if helpers is not None else {}, time.perf_counter()
        taken = [elapsed_s(trainer.step) for _ in range(steps)]
        times[run].append(fmean(taken))  # They work now and then, which a median would not show.
        if run and helpers is not None:
            ran_s += time.perf_counter() - began
            used = {name: used.get(name, 0.0) + now - before[name] for name, now in helpers.cpu_s().items()}
    return times, {name: one / ran_s for name, one in used.items()}


def report(run: Path, times: dict[bool, list[float]], used: dict[str, float]) -> None:
    step_s, blocks = median(times[False]), len(times[False])
    ratios = [one / other for one, other in zip(times[True], times[False], strict=True)]
    value, low, high = (100 * (one - 1) for one in Ratio.of(ratios, [1.0] * blocks))
    context = {"low": rounded(low), "high": rounded(high), "blocks": blocks, "step_ms": rounded(1e3 * step_s)}
    show("page_and_tuner_pct", value, "% of a step", **context, outcomes=[one.outcome for one in ROUNDS.read(run)])
    viewers, step = RunViewers(run.parent / "other"), LiveStep(step=1, took_us=1e5, busy_us=(9e4, 9e4), ests=(2, 2))
    calls: dict[str, Callable[[], object]] = {
        "look for a plan": PlanFile(run / "plan.json").poll,
        "look for a request": lambda: viewers.wanted(1),
        "write the step": lambda: viewers.show(step),
    }
    us = {
        name: 1e6 * elapsed_s(lambda call=call: [call() for _ in range(CALLS)]) / CALLS for name, call in calls.items()
    }
    show(
        "job_pct", 1e-4 * sum(us.values()) / step_s, "% of a step", us={name: rounded(one) for name, one in us.items()}
    )
    for name, share in used.items():
        show("cpu_pct", 100 * share, "% of a CPU", process=name)


if __name__ == "__main__":
    main()
