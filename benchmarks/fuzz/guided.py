"""Coverage-guided fuzzing of each target by atheris, one process after the other."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.fuzz.worker import Counts


def guided(names: Sequence[str], seconds: int, folder: Path, kept: Path | None) -> dict[str, Counts]:
    """Fuzz each target for so long, in processes of their own (`guided_process`)."""
    found = {}
    for number, name in enumerate(names):
        own, result = folder / str(number), folder / f"{number}.json"
        words = [name, str(seconds), str(own), str(result), str(kept / name if kept is not None else "")]
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.fuzz.guided_process", *words], capture_output=True, text=True
        )
        found[name] = msgspec.json.decode(result.read_bytes(), type=Counts) if result.exists() else Counts()
        if done.returncode:
            fault = f"the process ended with code {done.returncode}: {(done.stderr.splitlines() or [''])[-1]}"
            found[name].faults[fault] = 1
    return found
