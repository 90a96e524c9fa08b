"""How long a first and a second answer take. One JSON line a figure.

    python -m benchmarks.second_answers RUN… [--repeats 5]

Each answer comes from a process of its own, start and imports included. The first is computed and stored, the second is
that of the same command. `_s` is wall time, `_cpu_s` that of the processor; medians of the repeats.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.speed import caching
from esprof.core.errors import EXIT_OK, EXIT_REGRESSION

RUN = "RUN"
"""Stands for the run in the words of a command."""

COMMANDS = {
    "diagnose": ["diagnose"],
    "report": ["report", "--force", "-o", "/dev/null"],
    "ops": ["ops"],
    "replay": ["replay", "--what-if", "gpu=2x"],
    "validate": ["validate"],
    "check": ["check", "--baseline", RUN],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    for run in options.runs:
        for verb, words in COMMANDS.items():
            named = [run if word == RUN else word for word in words]
            pairs = [_pair([sys.executable, "-m", "esprof", *named, run]) for _ in range(options.repeats + 1)][1:]
            for which, times in zip(("first", "second"), zip(*pairs, strict=True), strict=True):
                context = {"verb": verb, "run": Path(run).name, "repeats": options.repeats}
                for unit, values in zip(("s", "cpu_s"), zip(*times, strict=True), strict=True):
                    line = {"name": f"{which}_answer_{unit}", "value": round(median(values), 3), "unit": "s"}
                    print(json.dumps(line | {"context": context}), flush=True)


def _pair(command: list[str]) -> tuple[tuple[float, float], tuple[float, float]]:
    """(wall, CPU) seconds of the first and of the second answer."""
    with tempfile.TemporaryDirectory() as folder:
        return _timed(command, folder), _timed(command, folder)


def _timed(command: list[str], folder: str) -> tuple[float, float]:
    started, used = time.perf_counter(), _cpu_of_children()
    done = subprocess.run(command, capture_output=True, env=caching(folder))
    if done.returncode not in (EXIT_OK, EXIT_REGRESSION):  # `validate` of a run that lacks ranks.
        done.check_returncode()
    return time.perf_counter() - started, _cpu_of_children() - used


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
