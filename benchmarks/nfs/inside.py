"""What runs on the mounts of `benchmarks.nfs`."""

import json
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.figures import show
from esprof import load
from esprof.core.errors import OutputError
from esprof.elastic.checkpoint.checkpoint import locked
from esprof.run.logs import HISTORY, JobEvent
from esprof.verbs import command_line

ONE, OTHER = Path("/mnt/one"), Path("/mnt/other")
ROOT = Path(__file__).parents[2]
JOB = ("-m", "benchmarks.diagnosis.launch", "2", "benchmarks/diagnosis/jobs/first/gpt.py", "--steps", "60")
STEPS = 300
EVENTS = ("kill=1", "drain=1", "stop=1", "plan=2")
LINES = 200
"""Events that each process appends to the history."""


def main() -> int:
    are_whole = [locks_work(), recorded(), appended(), refused(), soaked()]
    return 0 if all(are_whole) else 1


def locks_work() -> bool:
    """Whether `esprof doctor` finds that files can be locked."""
    checks = _answer("doctor", "--json", folder=ONE)["checks"]
    states = {check["name"]: check["state"] for check in checks}
    show("locks", int(states["locks"] == "ok"), "works", {"others": states})
    return states["locks"] == "ok"


def recorded() -> bool:
    """Whether a job that is recorded on one mount is diagnosed on the other."""
    run = "recorded"
    subprocess.run(command_line("record", "-q", "-o", str(ONE / run), "--", sys.executable, *JOB), check=True, cwd=ROOT)
    read, findings = load(OTHER / run), _answer("diagnose", "--json", run, folder=OTHER)["findings"]
    warnings = [warning.code for warning in read.warnings]
    show("recorded", len(read.ranks), "ranks", {"warnings": warnings, "findings": [one["id"] for one in findings]})
    return len(read.ranks) == 2


def appended() -> bool:
    """Whether nothing is lost when two processes, each on a mount of its own, append to one history."""
    (ONE / "job").mkdir()
    writers = [get_context("fork").Process(target=_append, args=(mount / "job",)) for mount in (ONE, OTHER)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    found = len(HISTORY.read(OTHER / "job"))
    show("appended", found, "events", {"of": 2 * LINES})
    return found == 2 * LINES


def _append(job: Path) -> None:
    for step in range(LINES):
        HISTORY.append(job, JobEvent(what="checkpoint", step=step))


def refused() -> bool:
    """Whether a job may not write checkpoints to a folder while another writes there from the other mount."""
    (ONE / "checkpoints").mkdir()
    with locked(ONE / "checkpoints"), ProcessPoolExecutor(1, get_context("fork")) as other:
        is_refused = other.submit(_is_refused, OTHER / "checkpoints").result()
    show("second_writer", int(is_refused), "refused", {})
    return is_refused


def _is_refused(folder: Path) -> bool:
    try:
        with locked(folder):
            return False
    except OutputError:
        return True


def soaked() -> bool:
    """Whether an elastic job keeps its bits, whatever befalls it."""
    words = ("--jobs", "ddp", "--steps", str(STEPS), "--events", *EVENTS, "--keep", str(ONE))
    return subprocess.run([sys.executable, "-m", "benchmarks.soak", *words], cwd=ROOT).returncode == 0


def _answer(*words: str, folder: Path) -> Any:
    done = subprocess.run(command_line(*words), stdout=subprocess.PIPE, cwd=folder)
    return json.loads(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
