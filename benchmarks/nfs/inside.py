"""What runs on the mounts of `benchmarks.nfs`.

python -m benchmarks.nfs.inside STEPS LINES
"""

import json
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.figures import show
from esprof import load
from esprof.run.logs import HISTORY, JobEvent
from esprof.verbs import command_line

ONE, OTHER = Path("/mnt/one"), Path("/mnt/other")
ROOT = Path(__file__).parents[2]
JOB = ("-m", "benchmarks.diagnosis.launch", "2", "benchmarks/diagnosis/jobs/first/gpt.py", "--steps", "60")
EVENTS = ("kill=1", "drain=1", "stop=1", "plan=2")


def main() -> int:
    steps, lines = sys.argv[1:]
    are_whole = [locks_work(), recorded(), appended(int(lines)), soaked(steps)]
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
    ranks, findings = load(OTHER / run).ranks, _answer("diagnose", "--json", run, folder=OTHER)["findings"]
    show("recorded", len(ranks), "ranks", {"findings": [finding["id"] for finding in findings]})
    return len(ranks) == 2


def appended(lines: int) -> bool:
    """Whether nothing is lost when two processes, each on a mount of its own, append so many events to one history."""
    (ONE / "job").mkdir()
    writers = [get_context("fork").Process(target=_append, args=(mount / "job", lines)) for mount in (ONE, OTHER)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    found = len(HISTORY.read(OTHER / "job"))
    show("appended", found, "events", {"of": 2 * lines})
    return found == 2 * lines


def _append(job: Path, lines: int) -> None:
    for step in range(lines):
        HISTORY.append(job, JobEvent(what="checkpoint", step=step))


def soaked(steps: str) -> bool:
    """Whether an elastic job keeps its bits, whatever befalls it."""
    words = ("--jobs", "ddp", "--steps", steps, "--events", *EVENTS, "--keep", str(ONE))
    return subprocess.run([sys.executable, "-m", "benchmarks.soak", *words], cwd=ROOT).returncode == 0


def _answer(*words: str, folder: Path) -> Any:
    done = subprocess.run(command_line(*words), stdout=subprocess.PIPE, cwd=folder)
    return json.loads(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
