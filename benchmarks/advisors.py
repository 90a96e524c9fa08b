"""How long the advisors take. One JSON line a figure: the median of the repeats, and the slowest.

    python -m benchmarks.advisors [--repeats 5] [--throughputs simulation_throughputs.json]

`assignment`: 1,024 ESTs on 1,024 devices of 8 types. `max_min`: max-min fairness of 2,000 jobs on 8 types, each job a class
of its own, and merged: jobs of 80 kinds, drawn at random. `knapsack`: sizes of 2,000 elastic jobs on 4,096 devices. With
Gavel's file, `gavel_max_min`: 2,000 jobs drawn from its 26 single-device workloads on its three types, merged and not.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np
import scipy

from esprof.analyzers.advisors.cluster.gavel import with_throughputs
from esprof.analyzers.advisors.cluster.mix import Mix, SharingJob, read
from esprof.analyzers.advisors.cluster.policies import pose
from esprof.analyzers.advisors.cluster.program import solve
from esprof.analyzers.advisors.cluster.scaling import SizeChoice, deal_out
from esprof.analyzers.advisors.job.makespan import Device, fewest_seconds

JOBS = 2_000
KINDS = 8
PROFILES = 80


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--throughputs", type=Path)
    options = parser.parse_args()
    draw = np.random.default_rng(0)
    show("assignment", options.repeats, assignment())
    mix = random_mix(draw)
    for merged in (False, True):
        show("max_min", options.repeats, max_min(mix, merged=merged), merged=merged)
    show("knapsack", options.repeats, knapsack(draw))
    if options.throughputs:
        published = gavel_mix(options.throughputs, draw)
        for merged in (False, True):
            show("gavel_max_min", options.repeats, max_min(published, merged=merged), merged=merged)


def max_min(mix: Mix, *, merged: bool) -> Callable[[], object]:
    return lambda: solve(pose(mix, "fairness", merged=merged).program)


def show(name: str, repeats: int, action: Callable[[], object], **context: Any) -> None:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        action()
        times.append(1_000 * (time.perf_counter() - began))
    machine = {"processor": platform.machine(), "cores": os.cpu_count(), "scipy": scipy.__version__}
    context |= {"worst": round(max(times), 1), "repeats": repeats} | machine
    print(json.dumps({"name": name, "value": round(median(times), 1), "unit": "ms", "context": context}), flush=True)


def assignment() -> Callable[[], object]:
    paces = [0.1 * (1 + number) for number in range(KINDS)]
    devices = [
        Device(str(at), str(at % KINDS), paces[at % KINDS], 1.2 * paces[at % KINDS], 0.01) for at in range(1_024)
    ]
    return lambda: fewest_seconds(devices, 1_024)


def random_mix(draw: np.random.Generator) -> Mix:
    rates = draw.lognormal(0, 1, (PROFILES, KINDS))
    kinds = [f"type{number}" for number in range(KINDS)]
    profiles = [dict(zip(kinds, row, strict=True)) for row in rates.tolist()]
    jobs = [
        SharingJob(id=at, workload=str(which), throughput_steps_per_s=profiles[which])
        for at, which in enumerate(draw.integers(0, PROFILES, JOBS).tolist())
    ]
    return Mix(cluster=dict.fromkeys(kinds, 64), jobs=tuple(jobs))


def gavel_mix(path: Path, draw: np.random.Generator) -> Mix:
    table = read(path, dict[str, dict[str, object]])
    names = sorted(key.removeprefix("('").removesuffix("', 1)") for key in table["v100"] if key.endswith(", 1)"))
    chosen = draw.integers(0, len(names), JOBS).tolist()
    jobs = tuple(SharingJob(id=at, workload=names[which]) for at, which in enumerate(chosen))
    alone = [msgspec.structs.replace(job, together=()) for job in with_throughputs(jobs, path)]
    return Mix(cluster={"v100": 256, "p100": 256, "k80": 256}, jobs=tuple(alone))


def knapsack(draw: np.random.Generator) -> Callable[[], object]:
    gains = np.cumsum(draw.random((JOBS, 8)), axis=1)
    jobs = [[SizeChoice(0, 0.0), *(SizeChoice(1 + at, float(gain)) for at, gain in enumerate(row))] for row in gains]
    return lambda: deal_out(jobs, 4_096)


if __name__ == "__main__":
    main()
