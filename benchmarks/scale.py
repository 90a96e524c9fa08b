"""What a run of many ranks takes: reading, building, replaying, two what-ifs, and the whole diagnosis; seconds and memory.

    python -m benchmarks.scale [--ranks 64] [--events 50000] [--repeats 3] [--keep FOLDER]

The job is simulated (`benchmarks.known`): data-parallel training on GPUs with a slow rank, written as torch's profiler
writes it. Each repeat is a process of its own; prints one JSON line a figure, the median over the repeats. Peak memory is
that of the process.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import esprof
from benchmarks.known.build import Plant
from benchmarks.known.jobs import SHAPES
from benchmarks.known.kineto import Recording, write
from benchmarks.known.machine import run
from benchmarks.known.program import Kind
from benchmarks.known.shapes.sketch import Sketch, sketch
from esprof.analyzers import diagnose
from esprof.replay.building.build import build
from esprof.replay.engine.timeline import replay
from esprof.replay.replayed import Replayed

WHAT_IFS = ("gpu=2x", "straggler=fix")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--events", type=int, default=50_000, help="of each rank, about")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where the traces stay, or are if it is not empty")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        print(json.dumps(measured(asked.measure)))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        if not any(folder.iterdir()):
            simulate(folder, asked.ranks, asked.events)
        command = [sys.executable, "-m", "benchmarks.scale", "--measure", str(folder)]
        found = [json.loads(subprocess.check_output(command)) for _ in range(asked.repeats)]
    for name in found[0]:
        values = [one[name] for one in found]
        context = {"ranks": asked.ranks, "least": min(values), "most": max(values), "repeats": len(values)}
        unit = "GB" if name == "peak_memory" else "events" if name == "events" else "s"
        print(json.dumps({"name": f"scale_{name}", "value": median(values), "unit": unit, "context": context}))
    return 0


def simulate(folder: Path, ranks: int, events: int) -> None:
    """Write the traces of a job of so many ranks and, about, so many events a rank."""
    few = _written(folder, ranks=2, steps=4)
    _written(folder, ranks, steps=max(4, round(4 * events / few)))


def _written(folder: Path, ranks: int, steps: int) -> int:
    """Write the job's traces with so many steps; how many events the first rank has."""
    drawn = _sketch(ranks, steps)
    groups = SHAPES["ddp"].write(drawn)
    program = drawn.build.program(spacing_ns=drawn.spacing_ns)
    files = write(folder, program, run(program), groups, drawn.recording)
    return sum(1 for line in files[0].open() if '"ph": "X"' in line)


def _sketch(ranks: int, steps: int) -> Sketch:
    drawn = sketch(12, (ranks,))
    drawn.build.plant = Plant(1, Kind.KERNEL, factor=1.5)
    plain = {"event_sync": False, "sleep_ns": 0, "uneven": 0.0, "allocator_ns": 0, "workers": 0}
    habits = replace(drawn.habits, warmup=1, steps=steps, item_every=1, **plain)
    return replace(drawn, habits=habits, recording=Recording(first=1, syncs=True, clocks=(0,) * ranks))


def measured(folder: Path) -> dict[str, float]:
    """Seconds of each stage, and the peak memory in GB, of this process."""
    found, since = {}, time.perf_counter()

    def lap(name: str) -> None:
        nonlocal since
        found[name], since = round(time.perf_counter() - since, 3), time.perf_counter()

    opened = esprof.load(folder)
    events = [len(opened.events(rank)) for rank in opened.ranks]
    lap("read")
    dfg = build(opened)
    lap("build")
    replay(dfg)
    lap("replay")
    del dfg
    replayed = Replayed.of(opened)
    since = time.perf_counter()
    replayed.pricer.prices(WHAT_IFS)
    lap("two_what_ifs")
    diagnose(replayed)
    lap("diagnose")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # In kilobytes.
    return {"events": sum(events), **found, "peak_memory": round(peak / 1e6, 2)}


if __name__ == "__main__":
    sys.exit(main())
