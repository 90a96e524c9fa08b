"""Does one real rank among replayed peers take as long for a step as in the whole job?

    python -m benchmarks.ghost [--repeats N]

Each repeat records a job of four ranks with a straggler, exports the reproducers of an innocent rank and of the straggler,
and then runs, one after the other, the innocent's reproducer, the whole job, and the straggler's reproducer. Mean steps of
the same rank, without profiler, are compared with each other and with the recorded steps. Prints the steps of each
repeat, and a JSON line for the median ratio over all repeats.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks.figures import show
from esprof.verbs import command_line

RANKS, SLOW, INNOCENT = 4, 2, 0
STEPS, WARM_UP = 30, 5
JOB = "benchmarks.jobs.straggler"
WHOLE_JOB = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}", "-m", JOB]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    ratios: dict[str, list[float]] = {
        f"{who}.{to}": [] for who in ("innocent", "straggler") for to in ("job", "recorded")
    }
    for number in range(options.repeats):
        with tempfile.TemporaryDirectory() as folder:
            step_ms = compared(Path(folder))
        for name, found in ratios.items():
            who, _, to = name.partition(".")
            found.append(step_ms[who] / step_ms["recorded" if to == "recorded" else f"{who} in the job"])
        print(f"repeat {number}: " + ", ".join(f"{who} {ms:.2f} ms" for who, ms in step_ms.items()), flush=True)
    context = {"repeats": options.repeats, "torch": torch.__version__, "python": platform.python_version()}
    for name, found in ratios.items():
        spread = {"least": min(found), "most": max(found)}
        show(f"ghost.{name}.step_ratio", statistics.median(found), "ratio", context | spread)


def compared(folder: Path) -> dict[str, float]:
    """Mean step in ms of each of the two ranks, in its reproducer and in the job."""
    run = folder / "run"
    _call(*command_line("record", "-q", "-o", str(run), "--stack-steps", "0", "--"), *WHOLE_JOB)
    for rank in (INNOCENT, SLOW):
        export = ("export", str(run), "--format", "ghost", "--rank", str(rank), "-o", str(folder / f"ghost-{rank}"))
        _call(*command_line(*export))
    innocent = _mean_ms(folder, *_ghost(folder, INNOCENT))[INNOCENT]
    job = _mean_ms(folder, *WHOLE_JOB)
    straggler = _mean_ms(folder, *_ghost(folder, SLOW))[SLOW]
    schedule = json.loads((folder / f"ghost-{SLOW}" / "schedule.json").read_text())
    return {
        "recorded": statistics.fmean(step["recorded_ns"] for step in schedule["steps"]) / 1e6,
        "innocent": innocent,
        "innocent in the job": job[INNOCENT],
        "straggler": straggler,
        "straggler in the job": job[SLOW],
    }


def _ghost(folder: Path, rank: int) -> list[str]:
    return [sys.executable, str(folder / f"ghost-{rank}" / "run.py"), "-m", JOB]


def _mean_ms(folder: Path, *command: str) -> dict[int, float]:
    """Mean step of each rank that ran, ms, without the first ones."""
    with tempfile.TemporaryDirectory(dir=folder) as times:
        _call(*command, "--steps", str(STEPS), "--times", times)
        files = Path(times).glob("rank-*.json")
        return {
            int(file.stem.removeprefix("rank-")): statistics.fmean(json.loads(file.read_text())[WARM_UP:])
            for file in files
        }


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
