"""How long things take: CLI start-up, reading, building and replaying a run. One JSON line a figure.

    python -m benchmarks.speed RUN… [--repeats 5]

Times are medians over repeats on this machine, with minimum and maximum; the first, which compiles or fills caches, is not
counted.
"""

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

import esprof
from esprof.replay import engine
from esprof.replay.build import build_counted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    command = [sys.executable, "-m", "esprof", "--help"]
    report("cli_start", lambda: subprocess.run(command, check=True, capture_output=True), options.repeats, {})
    for source in options.runs:
        run = esprof.load(source)
        built = build_counted(run)
        dfg = built.dfg
        context = {"run": source, "events": sum(len(run.events(rank)) for rank in run.ranks), "nodes": dfg.nodes}
        report("read", lambda source=source: esprof.load(source), options.repeats, context)
        report("build", lambda run=run: build_counted(run), options.repeats, context)
        report("replay", lambda g=dfg: engine.run(g, g.dur_ns, g.residual_ns), 20 * options.repeats, context, dfg.nodes)


def report(name: str, action: Callable[[], Any], repeats: int, context: dict[str, Any], nodes: int = 0) -> None:
    action()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
    context = context | {"machine": platform.processor() or platform.machine(), "repeats": repeats}
    spread = {"min": round(min(times), 5), "max": round(max(times), 5)}
    print(json.dumps({"name": name, "value": round(median(times), 5), "unit": "s", "context": context | spread}))
    if nodes:
        rate = float(np.round(nodes / median(times) / 1e6, 1))
        print(json.dumps({"name": f"{name}_rate", "value": rate, "unit": "M nodes/s", "context": context}))


if __name__ == "__main__":
    main()
