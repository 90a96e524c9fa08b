"""How right `esprof check` is: pairs of runs that were really recorded, of the same job and of one with a planted change.

    python -m benchmarks.check_trial [--rounds 8] [--keep FOLDER]
    python -m benchmarks.check_trial --again FOLDER         # judges anew stored recordings, records nothing

Records `benchmarks.jobs.planted` on this machine, in one process and in two over gloo: in each round each kind of change
once, with a run without a change before each. A run is held against the runs without a change that were recorded nearest to
it, and against a baseline of the six before it (`check_trial_failed_rolling`). Pairs share runs, so that they are not
independent: `disjoint` are those that share none.

Prints a JSON line for each kind: how often check failed, with the exact interval for so many independent pairs. `hidden` are
answers in which the mean is beyond the limit at 99 % and that neither fail nor say why; `change_pct` are the 5th, 50th and
95th percentile of how far runs and baselines lie apart. What each change adds to a step's CPU time, and how long ranks
waited for a CPU, is printed beside it. `check_trial_failed_within` holds one half of a run against the other, in stretches
that alternate: there a machine that others use too does the same to both.
"""

import argparse
import itertools
import json
import multiprocessing
import shutil
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch._dynamo  # noqa: F401  optimizers import it when they are made: once here, not in each job

import esprof
from benchmarks.figures import show
from benchmarks.jobs.planted import KINDS, STRETCH, TURNS, recorded
from esprof.analyzers.gate.baseline import Baseline, choose_phase, measure
from esprof.analyzers.gate.check import Check, Options, check
from esprof.analyzers.gate.rules import parse_rule
from esprof.analyzers.gate.samples import STATISTICS, Statistic
from esprof.analyzers.steps.job_steps import JobSteps
from esprof.core.statistics import share_interval

SAME = "none"
RANKS = {"one process": 1, "two over gloo": 2}
ALONE = "one process"
LONGEST_S = 300

RULES = ("step_time:+5%", "step_time:+20%")
"""The first is the default of `esprof check`."""
MIN_STEPS = Options(rules=()).min_steps
ROLLING = 6
"""Runs of a baseline of several: the latest ones before each run."""
NEAR = 3
"""Baselines that a run is held against: on a shared machine, what was recorded long before tells little."""
SETTLED = 20
"""Steps after which a job's CPU time is looked at: its window lies before."""


@dataclass(frozen=True)
class Recording:
    """One run: of which job, with which change, and as the how-manieth of all."""

    number: int
    round: int
    job: str
    kind: str

    def path(self, folder: Path) -> Path:
        return folder / f"run-{self.number:03}"


def plan(rounds: int, *, same_only: bool = False) -> Iterator[Recording]:
    """All recordings in their order: the jobs interleaved, and before each changed run one without a change."""
    number = itertools.count()
    if same_only:
        yield from (Recording(next(number), turn, job, SAME) for turn in range(rounds) for job in RANKS)
        return
    for turn in range(rounds):
        for kind in KINDS:
            if kind != SAME:
                yield from (Recording(next(number), turn, job, one) for one in (SAME, kind) for job in RANKS)
    # Behind all others, two a round: what is held against each other lies within one run.
    for turn in range(2 * rounds):
        yield from (Recording(next(number), rounds + turn // 2, ALONE, kind) for kind in TURNS)


def record_all(folder: Path, planned: Iterable[Recording]) -> None:
    """Make the recordings that `folder` lacks, each round in a fresh process, which forks the jobs."""
    folder.mkdir(parents=True, exist_ok=True)
    for _, of_round in itertools.groupby(planned, key=lambda recording: recording.round):
        wanted = [one for one in of_round if not one.path(folder).with_suffix(".json").exists()]
        if wanted:
            process = multiprocessing.get_context("spawn").Process(target=record_round, args=(folder, wanted))
            process.start()
            process.join()
            if process.exitcode:
                raise SystemExit(f"a round of recordings ended with {process.exitcode}")


def record_round(folder: Path, wanted: Sequence[Recording]) -> None:
    for recording in wanted:
        began = time.monotonic()
        record(recording.path(folder), recording)
        print(
            f"{recording.number}: {recording.job}, {recording.kind}, {time.monotonic() - began:.1f} s", file=sys.stderr
        )


def record(out: Path, recording: Recording) -> None:
    """Run the job to its end. What an earlier try left behind is removed."""
    shutil.rmtree(out, ignore_errors=True)
    ranks, port = RANKS[recording.job], free_port()
    processes = [
        multiprocessing.get_context("fork").Process(target=recorded, args=(recording.kind, out, rank, ranks, port))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(LONGEST_S)
    if any(process.exitcode != 0 for process in processes):
        for process in processes:
            process.kill()
        raise SystemExit(f"{recording} ended with {[process.exitcode for process in processes]}")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@dataclass(frozen=True)
class Measured:
    """What a recording left: the samples that `esprof check` compares, and the CPU time of each step, ms."""

    recording: Recording
    samples: Baseline
    steps: np.ndarray
    """Number of each step of the samples, int64[steps]."""
    cpu_ms: np.ndarray


@dataclass(frozen=True)
class Pair:
    """A run, the baseline that it was held against, and whether the pair is one of those that share no run."""

    baseline: Measured
    run: Measured
    disjoint: bool

    @property
    def kind(self) -> str:
        return self.run.recording.kind

    @property
    def job(self) -> str:
        return self.run.recording.job


def measured(folder: Path, planned: Iterable[Recording]) -> list[Measured]:
    """All recordings that are there, in their order."""
    found = []
    for recording in planned:
        cpu = recording.path(folder).with_suffix(".json")
        if cpu.exists():
            job = JobSteps(esprof.load(recording.path(folder)))
            phase = choose_phase(job, MIN_STEPS)
            steps, cpu_ms = job.numbers(phase), np.array(json.loads(cpu.read_text()))
            found.append(Measured(recording, measure(job, phase), steps, cpu_ms))
    return found


def pairs(of_job: Sequence[Measured]) -> Iterator[Pair]:
    """Each run without a change against the `NEAR` such runs before it, each changed run against the `NEAR` nearest.

    Disjoint are every second pair of neighbours without a change, and a changed run with the run before it.
    """
    same = [one for one in of_job if one.recording.kind == SAME]
    for at, run in enumerate(same):
        for back in range(1, min(NEAR, at) + 1):
            yield Pair(same[at - back], run, disjoint=back == 1 and at % 2 == 1)
    for run in of_job:
        if run.recording.kind in KINDS and run.recording.kind != SAME:
            nearest = sorted(same, key=lambda one: abs(one.recording.number - run.recording.number))[:NEAR]
            before = max(
                (one for one in same if one.recording.number < run.recording.number), key=_number, default=None
            )
            yield from (Pair(baseline, run, disjoint=baseline is before) for baseline in nearest)


def rolling(of_job: Sequence[Measured]) -> Iterator[Pair]:
    """Each run against a baseline of the `ROLLING` runs without a change before it."""
    same = [one for one in of_job if one.recording.kind == SAME]
    for run in of_job:
        before = [one for one in same if one.recording.number < run.recording.number][-ROLLING:]
        if run.recording.kind in KINDS and len(before) == ROLLING:
            first, *later = before
            history = first.samples
            for one in later:
                history = history.with_run(one.samples)
            yield Pair(replace(before[-1], samples=history), run, disjoint=False)


def _number(one: Measured) -> int:
    return one.recording.number


def within(runs: Iterable[Measured], kind: str) -> Iterator[Pair]:
    """The even against the odd stretches of each run of `kind`: what the machine does to one it does to the other."""
    for one in runs:
        if one.recording.kind == kind:
            steps = np.array(one.samples.samples["step_time"])
            is_odd = one.steps // STRETCH % 2 == 1
            halves = [
                msgspec.structs.replace(one.samples, samples={"step_time": tuple(steps[mask].tolist())})
                for mask in (~is_odd, is_odd)
            ]
            before, now = (Measured(one.recording, half, one.steps, one.cpu_ms) for half in halves)
            yield Pair(before, now, disjoint=True)


@dataclass(frozen=True)
class Judged:
    """Pairs and what `esprof check` said of each, by one rule."""

    rule: str
    of: Sequence[tuple[Pair, Check]]

    def outcomes(self) -> Counter[str]:
        return Counter(said.outcome for _, said in self.of)

    def by_statistic(self, statistic: Statistic) -> Counter[str]:
        return Counter(
            metric.outcome for _, said in self.of for metric in said.metrics if metric.statistic == statistic
        )

    def changes(self, statistic: Statistic) -> list[float]:
        """By how many per cent each run differs from its baseline."""
        return [metric.change for _, said in self.of for metric in said.metrics if metric.statistic == statistic]

    def waited(self) -> int:
        """Answers that are inconclusive for nothing but a longer wait for a CPU."""
        return sum(
            said.outcome == "inconclusive" and any(metric.more_cpu_wait_us is not None for metric in said.metrics)
            for _, said in self.of
        )

    def hidden(self) -> int:
        """Answers in which the mean is beyond the limit at 99 %, which are not `regressed`, and give no reason why."""
        return sum(
            metric.outcome != "regressed" and metric.more_cpu_wait_us is None and metric.p < said.alpha
            for _, said in self.of
            for metric in said.metrics
            if metric.statistic == "mean"
        )

    def only(self, disjoint: bool) -> "Judged":
        return Judged(self.rule, [(pair, said) for pair, said in self.of if pair.disjoint or not disjoint])


def judge(of: Iterable[Pair], rule: str) -> Judged:
    options = Options(rules=(parse_rule(rule),), min_steps=MIN_STEPS)
    return Judged(rule, [(pair, check(pair.baseline.samples, pair.run.samples, options)) for pair in of])


def show_group(name: str, judged: Judged, context: dict[str, Any]) -> None:
    """Print how often check failed, with the exact 95 % interval, and how far apart the runs were."""
    outcomes, n = judged.outcomes(), len(judged.of)
    if not n:
        return
    failed = outcomes["regressed"]
    low, high = share_interval(failed, n)
    context = context | {
        "rule": judged.rule,
        "pairs": n,
        "regressed": failed,
        "inconclusive": outcomes["inconclusive"],
        "unchanged": outcomes["unchanged"],
        "interval_pct": [round(100 * low, 1), round(100 * high, 1)],
        "regressed_by": {statistic: judged.by_statistic(statistic)["regressed"] for statistic in STATISTICS},
        "only_waited_for_a_cpu": judged.waited(),
        "hidden": judged.hidden(),
        "change_pct": {
            statistic: [round(float(q), 1) for q in np.quantile(judged.changes(statistic), [0.05, 0.5, 0.95])]
            for statistic in STATISTICS
        },
    }
    show(name, 100 * failed / n, "%", context)


def show_truth(runs: Sequence[Measured], job: str, kind: str) -> None:
    """By how much the CPU time of a changed run's steps is more, by median and mean over runs: what was planted."""
    planted, same = ([one.cpu_ms[SETTLED:] for one in runs if one.recording.kind == of] for of in (kind, SAME))
    if planted and same:
        more = {
            name: round(100 * (float(np.median([of(x) for x in planted]) / np.median([of(x) for x in same])) - 1), 1)
            for name, of in (("median", np.median), ("mean", np.mean))
        }
        show(
            "check_trial_cpu_more",
            more["median"],
            "%",
            {"job": job, "kind": kind, "runs": len(planted), "mean": more["mean"]},
        )


def show_wait(runs: Sequence[Measured], job: str) -> None:
    """The share of their time that ranks were ready to run and had no CPU: how much else the machine did."""
    shares = [
        sum(one.samples.samples["cpu_wait"]) / sum(one.samples.samples["step_time"])
        for one in runs
        if "cpu_wait" in one.samples.samples
    ]
    quartiles = [round(100 * float(share), 1) for share in np.quantile(shares, [0.25, 0.5, 0.75])] if shares else []
    if quartiles:
        show(
            "check_trial_cpu_wait",
            quartiles[1],
            "% of a step",
            {"job": job, "runs": len(shares), "quartiles": quartiles},
        )


def show_cpu_apart(found: Sequence[Pair], job: str) -> None:
    """How far the CPU time of the same steps lies apart in runs without a change: what no wait for a CPU explains."""
    means = [
        (pair.baseline.cpu_ms[SETTLED:].mean(), pair.run.cpu_ms[SETTLED:].mean()) for pair in found if pair.kind == SAME
    ]
    if means:
        apart = [100 * abs(now / before - 1) for before, now in means]
        middle, most = (float(np.quantile(apart, share)) for share in (0.5, 0.9))
        show("check_trial_cpu_apart", most, "%", {"job": job, "pairs": len(means), "median": round(middle, 1)})


def show_all(runs: Sequence[Measured]) -> None:
    for job in RANKS:
        of_job = [one for one in runs if one.recording.job == job]
        found = list(pairs(of_job))
        show_wait(of_job, job)
        show_cpu_apart(found, job)
        for kind in KINDS:
            if kind != SAME:
                show_truth(of_job, job, kind)
        for rule in RULES:
            for kind in KINDS:
                judged = judge([pair for pair in found if pair.kind == kind], rule)
                for which in ("all", "disjoint"):
                    context = {"job": job, "kind": kind, "which": which}
                    show_group("check_trial_failed", judged.only(disjoint=which == "disjoint"), context)
            for kind in KINDS:
                context = {"job": job, "kind": kind, "which": f"baseline of {ROLLING} runs"}
                of_kind = [pair for pair in rolling(of_job) if pair.kind == kind]
                show_group("check_trial_failed_rolling", judge(of_kind, rule), context)
            for kind in (SAME, *TURNS):
                context = {"job": job, "kind": kind, "which": f"stretches of {STRETCH} steps of one run"}
                show_group("check_trial_failed_within", judge(within(of_job, kind), rule), context)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--same-only", action="store_true", help="record runs without a change only, one a job and round"
    )
    folders = parser.add_mutually_exclusive_group()
    folders.add_argument("--keep", type=Path, metavar="FOLDER", help="folder for the recordings; those there are kept")
    folders.add_argument("--again", type=Path, metavar="FOLDER", help="judge the recordings stored there")
    options = parser.parse_args()
    planned = list(plan(options.rounds, same_only=options.same_only))
    with tempfile.TemporaryDirectory() as folder:
        runs = options.again or options.keep or Path(folder)
        if not options.again:
            record_all(runs, planned)
        show_all(measured(runs, planned))


if __name__ == "__main__":
    main()
