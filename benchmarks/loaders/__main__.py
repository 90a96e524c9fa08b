"""What-ifs on DataLoaders, predicted and then carried out, on jobs that read and decode real files.

    python -m benchmarks.loaders KEEP [--repeats 2] [--only REGEX] [--write docs/results/loaders.md] [--write-model-errors]

Each job of `benchmarks.loaders.jobs` and `benchmarks.jobs.loaders_other` follows the protocol of `benchmarks.loaders.kit`.
For each change of `benchmarks.loaders.changes`, the unchanged job is recorded by `esprof record`, the effect is predicted,
and then the job runs without and with the change, interleaved (A B A B), without esprof. Files are read from a cold page
cache (posix_fadvise). The store, beyond the real disk, and the accelerator are emulated by sleeps, in which CPUs are idle.

Recordings and measured steps stay in KEEP; what is there is not made again. Prints a JSON line for each figure, and the
table. It needs a machine that does nothing else, two CPUs, and about a minute for each change of a job. On a machine with
other users, `chrt -r 1 python -m benchmarks.loaders KEEP` (as root) gives these jobs the CPUs first.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import msgspec

import esprof
from benchmarks.loaders.changes import CHANGES, JOBS, OWN, SHARED, STEPS, Change, jobs
from benchmarks.loaders.outcome import Measured, Outcome, section, show_summary
from benchmarks.loaders.predicted import predict
from benchmarks.model_errors import CarriedOut, term_of, write_carried_out
from benchmarks.sections import write_sections
from benchmarks.settings import slug

_SKIP, _WINDOW = 64, 32
"""Steps before the recorded window, in which all files are read once, and of the window."""
_MANY = 8
"""Jobs beside a recorded one run for so many times its steps, if it does not end before."""
_SETTLES = 8
"""Further steps after the first pass over the files that do not count."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("keep", type=Path)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument(
        "--only", type=re.compile, default=re.compile(""), help="changes whose `JOB CHANGE` this matches"
    )
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the table into the section `loaders`")
    parser.add_argument(
        "--write-model-errors", action="store_true", help="write what answers were off by for intervals"
    )
    options = parser.parse_args()
    chosen = [(job, change) for job in jobs() for change in CHANGES if options.only.search(f"{job} {change.name}")]
    if not chosen:
        parser.error(f"no change matches {options.only.pattern!r}")
    outcomes = []
    for job, change in chosen:
        outcomes.append(carry_out(job, change, options.keep, options.repeats))
        outcomes[-1].show()
    show_summary(outcomes)
    print(section(outcomes))
    if options.write:
        write_sections(options.write, {"loaders": section(outcomes)})
    if options.write_model_errors:
        write_carried_out("loaders", "python -m benchmarks.loaders KEEP --write-model-errors", answers(outcomes))


def carry_out(job: str, change: Change, keep: Path, repeats: int) -> Outcome:
    """Record a job, predict the effect of a change, and make it, unless KEEP tells what came of it."""
    name = job.rpartition(".")[2]
    predicted = predict(record(job, change.before, keep / name), change.what_if)
    known = keep / name / f"{slug(change.name)}.json"
    if not known.exists():
        known.write_bytes(msgspec.json.encode(measure(job, change, keep, repeats)))
    measured = msgspec.json.decode(known.read_bytes(), type=Measured)
    return Outcome(name, job.startswith(OWN), change.name, change.what_if, predicted, measured)


def measure(job: str, change: Change, keep: Path, repeats: int) -> Measured:
    """Run a job without and with a change, interleaved."""
    before, after = change.options
    started, waited = time.monotonic(), _waited_s()
    pairs = [(run(job, before, keep), run(job, after, keep)) for _ in range(repeats)]
    took, waiting = time.monotonic() - started, _waited_s()
    return Measured(
        before=tuple(one for one, _ in pairs),
        after=tuple(one for _, one in pairs),
        pressure_pct=None if waited is None or waiting is None else 100 * (waiting - waited) / took,
    )


def record(job: str, options: Mapping[str, str], keep: Path) -> esprof.Run:
    """The recording of a job with these options, beside its equals, made unless it is in `keep`."""
    out = (
        keep / f"recorded-{slug('-'.join(f'{name}-{value}' for name, value in sorted(options.items())) or 'as-it-is')}"
    )
    if not (out / "run.json").exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        window = ["--skip", str(_SKIP), "--warmup", "2", "--steps", str(_WINDOW), "--stack-steps", "0"]
        esprof_record = [sys.executable, "-m", "esprof", "record", "-q", "-f", "-o", str(out), *window, "--"]
        others = [_start(command(job, options, keep.parent, _MANY * STEPS)) for _ in range(_jobs(options) - 1)]
        try:
            _end(_start([*esprof_record, *command(job, options, keep.parent, STEPS)]))
        finally:
            for other in others:
                other.kill()
                other.communicate()
    return esprof.load(out)


def run(job: str, options: Mapping[str, str], keep: Path) -> float:
    """Run a job, or equal jobs side by side; returns their mean step, ms, once all files have been read."""
    with TemporaryDirectory(prefix="esprof-shared-") as folder:
        argv = [word if word != SHARED else folder for word in command(job, options, keep, STEPS)]
        said = [json.loads(_end(one).splitlines()[-1]) for one in [_start(argv) for _ in range(_jobs(options))]]
    return fmean(step for one in said for step in one["step_ms"][one["per_epoch"] + _SETTLES :])


def command(job: str, options: Mapping[str, str], keep: Path, steps: int) -> list[str]:
    chosen = {
        "files": str(keep / "files" / job.rpartition(".")[2]),
        "steps": str(steps),
        **{name: value for name, value in options.items() if name != JOBS},
    }
    return [sys.executable, "-m", job, *(word for name, value in chosen.items() for word in (f"--{name}", value))]


def _jobs(options: Mapping[str, str]) -> int:
    return int(options.get(JOBS, "1"))


def answers(outcomes: Sequence[Outcome]) -> Iterator[CarriedOut]:
    """What came of the changes of one term."""
    for one in outcomes:
        if one.counts and one.promised is not None and "," not in one.what_if:
            yield CarriedOut(one.predicted.job_class, term_of(one.what_if), one.before, one.promised, one.observed)


def _start(argv: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _end(process: subprocess.Popen[str]) -> str:
    """What a process printed, once it has ended."""
    said, errors = process.communicate()
    if process.returncode:
        raise SystemExit(f"{process.args} ended with {process.returncode}\n{errors}")
    return said


def _waited_s() -> float | None:
    """For how long some process of this machine has waited for a CPU, s; None if the kernel does not tell."""
    try:
        text = Path("/proc/pressure/cpu").read_text()
    except OSError:
        return None
    found = re.search(r"^some .*total=(\d+)", text, re.MULTILINE)
    return int(found[1]) / 1e6 if found else None


if __name__ == "__main__":
    main()
