"""Ranks that train on other mixes of labels than the job: how far apart they are, and what that does to models.

    python -m benchmarks.label_skew [--ranks 2] [--shares 0 0.4 1] [--norm group] [--averages 8]

Trains a small network on scikit-learn's digits over gloo (benchmarks/jobs/skewed.py). For shares of digits that are dealt by
label it prints the distance of the ranks' mixes beside its closed form, share · (1 - 1/ranks), and the accuracy loss after
some numbers of steps apart, with its 95 % interval. What steps apart take is in `benchmarks.local_steps`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import esprof
from benchmarks.figures import show
from esprof import Run
from esprof.analyzers.findings.data.label_mixes import LabelMixes
from esprof.core.statistics import mean_margin

APART = (2, 8, 32, 128)
"""Numbers of steps before an average."""
_WINDOW = ["--skip", "5", "--warmup", "2", "--steps", "24", "--stack-steps", "0"]
_TOGETHER = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.0, 0.4, 1.0], help="dealt by label")
    parser.add_argument("--norm", choices=("group", "batch"), default="group")
    parser.add_argument("--averages", type=int, default=8)
    options = parser.parse_args()
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={options.ranks}"]
    with tempfile.TemporaryDirectory() as folder:
        for share in options.shares:
            job = ["--share", str(share), "--norm", options.norm, "--averages", str(options.averages)]
            _show_skew(*recorded(Path(folder) / f"share-{share}", launcher, *job), share, options.norm)


def recorded(out: Path, launcher: Sequence[str], *job: str) -> tuple[Run, dict[str, Any]]:
    """The recording of the job (benchmarks/jobs/skewed.py) that Python starts with `launcher`, and what the job printed."""
    script = ["-m", "benchmarks.jobs.skewed", "--together", str(_TOGETHER), "--apart", *map(str, APART), *job]
    command = [sys.executable, "-m", "esprof", "record", "-q", "-o", str(out), *_WINDOW, "--", sys.executable]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *launcher, *script], check=True, capture_output=True, text=True, env=one_thread)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return esprof.load(out), json.loads(line)


def _show_skew(run: Run, printed: dict[str, Any], share: float, norm: str) -> None:
    mixes = LabelMixes.of(run)
    assert mixes is not None
    setting = {"share": share, "norm": norm, "ranks": len(mixes.ranks)}
    closed_form = round(share * (1 - 1 / len(mixes.ranks)), 4)
    by_chance = round(float(mixes.by_chance.mean()), 4)
    show("label_distance", mixes.distance.mean(), "share", setting | {"closed_form": closed_form, "chance": by_chance})
    for every, one in printed.items():
        margin, tested = round(mean_margin(one["losses"]), 4), round(one["tested"], 4)
        show("accuracy_loss", one["mean_loss"], "share", setting | {"apart": every, "margin": margin, "test": tested})


if __name__ == "__main__":
    main()
