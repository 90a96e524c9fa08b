"""What-ifs verified on unlike jobs by `esprof verify`: of buckets, codecs and loaders, with predicted and observed steps.

    python -m benchmarks.verified KEEP [--second] [--repeats 3] [--only REGEX] [--write-model-errors]
    python -m benchmarks.ledger KEEP/*/ --write docs/results/accuracy.md

Jobs have two ranks on this machine, whose exchanges take CPU time from what they compute; the same ones run on two hosts of
the test bed (needs root), where links are slow. Records each job once, probed, into KEEP, then makes each of its changes;
what came stands in the Runs' ledgers. What is there already is not done again, so that a benchmark which was broken off goes
on where it ended. Prints a JSON line a change, with how busy the machine was, and those of `benchmarks.ledger`. It needs a
machine that does nothing else.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import esprof
from benchmarks import ledger as figures
from benchmarks.figures import show
from benchmarks.model_errors import CarriedOut, term_of, write_carried_out
from esprof.core.errors import EXIT_OK, EXIT_REGRESSION
from esprof.replay.replayed import Replayed
from esprof.run.logs import LEDGER, ObservedOutcome

RANKS = 2
STEPS = 40
WINDOW = 8
"""Steps that are recorded. A profiler that notes shapes makes a process larger with each step, and where a
hypervisor takes back what a machine has not used, memory that is touched anew is slow: longer windows get slower
(`benchmarks.shapes`)."""
PROBE_S = 40
ESPROF = [sys.executable, "-m", "esprof"]
ON_HOSTS = ["-m", "benchmarks.testbed", "torchrun", "--cpu", "0.8", "0.8"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]


@dataclass(frozen=True)
class Job:
    """A job of `benchmarks.jobs`, its arguments, and the what-ifs that are carried out on it."""

    name: str
    arguments: tuple[str, ...]
    specs: tuple[str, ...]
    rates: tuple[str, ...] = ()
    """Of the links of two hosts of the test bed; empty where both ranks are on this machine."""
    queue: int | None = None
    """Bytes that wait for such a link; None for as many as there are."""

    @property
    def called(self) -> str:
        return "-".join(str(part) for part in (self.name, *dict.fromkeys(self.rates), self.queue) if part is not None)

    def command(self, keep: Path) -> list[str]:
        files = ["--files", str(keep / f"{self.name}-files")]
        # More steps than any run of it makes: esprof ends the job.
        more = ["--steps", str(10 * STEPS)]
        queue = [] if self.queue is None else ["--queue", str(self.queue)]
        launcher = [*ON_HOSTS, "--rate", *self.rates, *queue, "--"] if self.rates else TORCHRUN
        return [sys.executable, *launcher, "-m", f"benchmarks.jobs.{self.name}", *files, *more, *self.arguments]


MLP = ("--hidden", "1024", "--batch", "64", "--bucket-mb", "4")
GPT = ("--hidden", "256", "--batch", "8", "--bucket-mb", "25")
CNN = ("--batch", "16")

FIRST = (
    Job("mlp", MLP, ("bucket_mb=25", "bucket_mb=1", "compress=fp16", "compress=int8", "data[ready]=0")),
    Job("gpt", GPT, ("bucket_mb=2", "compress=bf16", "data[ready]=0")),
    Job("cnn", CNN, ("data[ready]=0", "compress=fp16")),
    Job("mlp", MLP, ("bucket_mb=25", "bucket_mb=1", "compress=fp16", "compress=int8"), rates=("500mbit", "500mbit")),
    Job("gpt", GPT, ("bucket_mb=2", "compress=bf16"), rates=("500mbit", "500mbit")),
    Job("cnn", CNN, ("data[ready]=0", "compress=fp16"), rates=("500mbit", "500mbit")),
)
"""`replay/whatif/error/model_errors.json` has the errors of these predictions."""

SECOND = (
    Job("lstm", ("--bucket-mb", "1"), ("bucket_mb=25", "compress=bf16", "data[ready]=0")),
    Job("mixer", ("--bucket-mb", "25"), ("bucket_mb=1", "compress=int8", "compress=fp16")),
    Job("lstm", ("--bucket-mb", "1"), ("bucket_mb=25", "compress=int8"), rates=("200mbit", "200mbit")),
    Job("mixer", ("--bucket-mb", "25"), ("bucket_mb=1", "compress=bf16"), rates=("200mbit", "200mbit")),
)
"""Chosen after that."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("keep", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--only", type=re.compile, default=re.compile(""), help="changes whose `JOB WHAT-IF` this matches"
    )
    parser.add_argument("--second", action="store_true", help="the jobs that were chosen last")
    parser.add_argument(
        "--write-model-errors", action="store_true", help="write what answers were off by for intervals"
    )
    options = parser.parse_args()
    options.keep.mkdir(parents=True, exist_ok=True)
    jobs = SECOND if options.second else FIRST
    for job, spec in chosen(jobs, options.only):
        run = options.keep / job.called
        record(job, run, options.keep)
        if spec not in done(run):
            verify(job, spec, run, options.keep, options.repeats)
    lines = [line for job in jobs for line in LEDGER.read(options.keep / job.called)]
    outcomes = [line for line in lines if isinstance(line, ObservedOutcome)]
    if outcomes:
        figures.everything(outcomes).show()
        if options.write_model_errors:
            command = "python -m benchmarks.verified KEEP" + (" --second" if options.second else "")
            answers = [one for job in jobs for one in carried_out(options.keep / job.called)]
            write_carried_out("verified", command, answers)


def carried_out(run: Path) -> Iterator[CarriedOut]:
    """What came of the Run's changes of one term, µs."""
    outcomes = [line for line in LEDGER.read(run) if isinstance(line, ObservedOutcome) and len(line.terms) == 1]
    if outcomes:
        job = Replayed.of(esprof.load(run)).pricer.error.job_class
        for one in outcomes:
            yield CarriedOut(job, term_of(one.spec), one.before.us, one.predicted.us, one.observed.us)


def chosen(jobs: Sequence[Job], only: re.Pattern[str]) -> Iterator[tuple[Job, str]]:
    return ((job, spec) for job in jobs for spec in job.specs if only.search(f"{job.called} {spec}"))


def done(run: Path) -> set[str]:
    """The what-ifs of which the Run's ledger tells what came."""
    return {line.spec for line in LEDGER.read(run) if isinstance(line, ObservedOutcome)}


def record(job: Job, run: Path, keep: Path, probe_s: float = PROBE_S) -> None:
    """Record a job and probe it for `probe_s` seconds, unless that was done."""
    if (run / "run.json").exists():
        return
    window = [
        "--skip",
        "5",
        "--warmup",
        "2",
        "--steps",
        str(WINDOW),
        "--stack-steps",
        "0",
        "--shapes",
        "--probe",
        str(probe_s),
    ]
    done = call(["record", "-q", "-f", "-o", str(run), *window, "--", *job.command(keep)])
    if done.returncode:
        raise SystemExit(f"{job.called} could not be recorded:\n{done.stderr}")


def verify(job: Job, spec: str, run: Path, keep: Path, repeats: int) -> None:
    options = ["--what-if", spec, "--repeats", str(repeats), "--steps", str(STEPS), "--json"]
    load = os.getloadavg()[0]
    done = call(["verify", str(run), *options, "--", *job.command(keep)])
    context: dict[str, Any] = {"job": job.called, "what_if": spec, "load_before": round(load, 1)}
    if done.returncode not in (EXIT_OK, EXIT_REGRESSION):
        reasons = [line for line in done.stderr.splitlines() if line.startswith("esprof: ")]
        show("verified_nothing", 1, "changes", context | {"reason": reasons[-1:]})
        return
    answer = json.loads(done.stdout)
    steps = {name: round(answer[name]["us"] / 1e3, 1) for name in ("before", "predicted", "observed")}
    warnings = [warning["code"] for warning in answer["warnings"]]
    context |= {"ms": steps, "verdict": answer["verdict"], "warnings": warnings}
    show("verified_error", answer["error_pct"], "%", context)


def call(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*ESPROF, *arguments], capture_output=True, text=True, check=False)


if __name__ == "__main__":
    main()
