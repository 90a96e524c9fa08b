"""Records cases, and keeps the recordings: FOLDER/CASE/run-REPEAT, beside them what was planted.

Pairs of runs that follow one another, one with the fault and one without it, tell what it costs:
FOLDER/CASE/pair-NUMBER/with and FOLDER/CASE/pair-NUMBER/without.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import mean

import esprof
from benchmarks.diagnosis.cases import Case
from benchmarks.diagnosis.places import fault_lines
from benchmarks.settings import slug

ROOT = Path(__file__).resolve().parents[2]
WINDOW = ("--skip", "8", "--warmup", "2", "--steps", "8")
NO_WINDOW = ("--flight", "100000")
FIRST_STEPS = 5
"""Steps of a pair's runs that are left out: buckets, caches and loaders are set up in them."""
PATIENCE_S = 300
GRACE_S = 30
NOTE = "planted.json"
WITH, WITHOUT = "with", "without"


@dataclass(frozen=True)
class Planted:
    """What was planted when a case was recorded: a script that is edited afterwards has its lines elsewhere."""

    job: str
    fault: str
    rank: int
    strength: float
    seed: int
    file: str
    """What holds the fault, relative to the folder that the job ran in."""
    lines: list[int]
    """Of the fault in the file; none where it is no code of the training process."""


@dataclass(frozen=True)
class Recorded:
    """A case, what was planted, its recordings in the order of their repeats, and its pairs: without the fault and with."""

    case: Case
    planted: Planted
    runs: Sequence[Path]
    pairs: Sequence[tuple[Path, Path]] = ()

    @cached_property
    def measured(self) -> list["Measured"]:
        return [measure(esprof.load(run)) for run in self.runs]

    @cached_property
    def measured_pairs(self) -> list[tuple["Measured", "Measured"]]:
        of_runs = ([measure(esprof.load(run), FIRST_STEPS) for run in pair] for pair in self.pairs)
        return [(without, having) for without, having in of_runs]


@dataclass(frozen=True)
class Measured:
    """Of one recording: means over all ranks of the steps without profiler, the first ones left out."""

    step_us: float
    taken_pct: float
    """Share of the step in which the training thread was ready to run while something else had its CPU."""
    free_us: float
    """The step less that time on the rank that lost most so: nearer to what it takes where nothing else runs."""


@dataclass(frozen=True)
class Turn:
    """One recording to be made for the case `of`: of that, or of its job without the fault."""

    of: Case
    case: Case
    out: Path
    window: Sequence[str]

    @property
    def name(self) -> str:
        return self.of.name if self.window is WINDOW else f"{self.of.name}, {self.out.parent.name} {self.out.name} it"


def folder_of(case: Case, folder: Path) -> Path:
    return folder / f"{slug(case.name)}-{case.seed}"


def planted(case: Case) -> Planted:
    source = case.job.source_of(case.fault) if case.fault else case.job.script
    placed = case.fault is not None and case.fault.placed
    lines = fault_lines(source.read_text(), case.planted) if placed else []
    file = str(source.relative_to(ROOT))
    return Planted(case.job.name, case.planted, case.rank, case.strength, case.seed, file, lines)


def note(case: Case, target: Path) -> None:
    """Write down what is planted beside the recordings.

    Ends the program where those that are there are of something else: their truths are not to be mixed.
    """
    file, planned = target / NOTE, asdict(planted(case))
    if not any((*target.glob("run-*/run.json"), *target.glob("pair-*/*/run.json"))):
        file.write_text(json.dumps(planned, indent=1))
    elif json.loads(file.read_text()) != planned:
        raise SystemExit(
            f"{target}: its recordings are of another version of the case; remove it, or give another folder"
        )


def carry_out(cases: Sequence[Case], folder: Path, repeats: int, pairs: int = 0) -> int:
    """Record all cases, repeat after repeat, so that a job with a fault and without it alternate; pairs in the first.

    Recordings that are there already are not made again. Returns how many failed; what they said is on stderr.
    """
    failed = 0
    with tempfile.TemporaryDirectory() as files:
        for turn in turns(cases, folder, repeats, pairs):
            if (turn.out / "run.json").exists():
                continue
            turn.out.parent.mkdir(parents=True, exist_ok=True)
            note(turn.of, folder_of(turn.of, folder))
            failure = record(turn.case, turn.out, Path(files) / turn.case.job.name, turn.window)
            if failure:
                failed += 1
                shutil.rmtree(turn.out, ignore_errors=True)
                print(f"{turn.name}: {failure}", file=sys.stderr)
            else:
                found = measure(esprof.load(turn.out))
                said = f"{found.step_us / 1e3:.1f} ms a step, {found.taken_pct:.0f} % of it without a CPU"
                print(f"{turn.name}: {said}", file=sys.stderr, flush=True)
    return failed


def turns(cases: Sequence[Case], folder: Path, repeats: int, pairs: int) -> Iterator[Turn]:
    """All recordings in order; every other pair begins with the fault, so that a machine that slows down favours neither."""
    for repeat in range(max(repeats, 1)):
        for case in cases:
            target = folder_of(case, folder)
            if repeats:
                yield Turn(case, case, target / f"run-{repeat}", WINDOW)
            for number in range(0 if repeat or case.fault is None else pairs):
                pair = target / f"pair-{number}"
                without = Turn(case, replace(case, fault=None), pair / WITHOUT, NO_WINDOW)
                having = Turn(case, case, pair / WITH, NO_WINDOW)
                yield from (having, without) if number % 2 else (without, having)


def record(case: Case, out: Path, files: Path, window: Sequence[str] = WINDOW) -> str | None:
    """Record a case into `out`; returns the end of what was said where that failed."""
    files.mkdir(parents=True, exist_ok=True)
    recorder = [sys.executable, "-m", "esprof", "record", "-q", "-f", "-o", str(out), *window, "--"]
    command = [*recorder, *launcher(case), *case.arguments, "--files", str(files)]
    # In a session of its own, all of which can be ended: a job outlives a recorder that is killed.
    started = subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        said, _ = started.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        return f"it did not end within {PATIENCE_S} s: {' '.join(command)}\n{_ended(started)[-3000:]}"
    except KeyboardInterrupt:
        _ended(started)
        raise
    if started.returncode or not (out / "run.json").exists():
        return f"{' '.join(command)} ended with {started.returncode}\n{said[-3000:]}"
    return None


def _ended(recorder: "subprocess.Popen[str]") -> str:
    """End a recorder with its job, and a bed with its hosts; returns what was said."""
    os.killpg(recorder.pid, signal.SIGTERM)
    try:
        said, _ = recorder.communicate(timeout=GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(recorder.pid, signal.SIGKILL)
        said, _ = recorder.communicate()
    return said


def launcher(case: Case) -> list[str]:
    """The command that starts the case's script, which takes its arguments next."""
    script = str(case.job.script.relative_to(ROOT))
    if hosts := case.hosts:
        bed = ["-m", "benchmarks.testbed", "torchrun", "--cpu", *map(str, hosts.cpu), "--rate", *hosts.rate, "--"]
        return [sys.executable, *bed, script]
    if case.job.ranks == 1 or case.job.starts_itself:
        return [sys.executable, script]
    apart = ["--apart"] if case.apart else []
    return [sys.executable, "-m", "benchmarks.diagnosis.launch", *apart, str(case.job.ranks), script]


def stored(cases: Iterable[Case], folder: Path) -> Iterator[Recorded]:
    """The cases with stored recordings."""
    for case in cases:
        target = folder_of(case, folder)
        runs = sorted(run for run in target.glob("run-*") if (run / "run.json").exists())
        pairs = [(pair / WITHOUT, pair / WITH) for pair in sorted(target.glob("pair-*"))]
        whole = [pair for pair in pairs if all((run / "run.json").exists() for run in pair)]
        if runs or whole:
            yield Recorded(case, Planted(**json.loads((target / NOTE).read_text())), runs, whole)


def measure(run: esprof.Run, first_steps: int = 1) -> Measured:
    """What a step takes but for the first ones, which are left out."""
    step_ns, ready_ns = [], []
    for rank in run.ranks:
        steps = run.steps(rank)
        plain = [phase == "plain" for phase in steps.texts("phase")]
        plain[:first_steps] = [False] * first_steps
        step_ns.append(float(steps.ints("dur_ns")[plain].mean()))
        ready_ns.append(float(steps.ints("ready_ns")[plain].mean()))
    step_us = mean(step_ns) / 1e3
    return Measured(step_us, 100 * mean(ready_ns) / mean(step_ns), step_us - max(ready_ns) / 1e3)


def can_run(case: Case) -> str | None:
    """Why a case cannot run here; None where it can."""
    if missing := case.job.missing():
        return f"{', '.join(missing)} is not installed"
    if case.job.hosts and os.geteuid():
        return "the test bed needs root"
    return None
