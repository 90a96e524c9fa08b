"""What-ifs whose answer is known because the change was made: predicted against recorded, one JSON line a figure.

    python -m benchmarks.executed [--repeats 3]

Trains the demo's job on two workers of this machine, even, with a slow loader on one rank, and with a slow rank, in turn.
`data=0` on the second and `straggler=fix` on the third predict the first, which the analysis has not seen.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import esprof
from esprof.replay import answer_run
from esprof.tracer import demo_job

CASES: dict[str, tuple[dict[str, Any], str | None]] = {
    "even": ({"read_latency": [0, 0], "rest": [0, 0]}, None),
    "slow loader": ({"read_latency": [0, 0.03], "rest": [0, 0]}, "data=0"),
    "slow rank": ({"read_latency": [0, 0], "rest": [0, 0.025]}, "straggler=fix"),
}
STEPS = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    measured: dict[str, list[float]] = {name: [] for name in CASES}
    predicted: dict[str, list[float]] = {name: [] for name in CASES}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(repeats):
            for name, (config, spec) in CASES.items():
                run = record(Path(folder) / f"{name.replace(' ', '-')}-{repeat}", config)
                answer = answer_run(run, [spec] if spec else [])
                measured[name].append(answer.step_us / 1e3)
                predicted[name] += [what_if.predicted_us / 1e3 for what_if in answer.what_if if what_if.predicted_us]
    truth = median(measured["even"])
    for name, (_, spec) in CASES.items():
        context = {"case": name, "repeats": repeats, "ms": [round(value, 1) for value in measured[name]]}
        show("step_time", median(measured[name]), "ms", context)
        if spec:
            context = {"case": name, "what_if": spec, "ms": [round(value, 1) for value in predicted[name]]}
            show("predicted_step_time", median(predicted[name]), "ms", context | {"made_true": round(truth, 1)})
            show("what_if_error", 100 * (median(predicted[name]) / truth - 1), "%", context)


def record(out: Path, config: dict[str, Any]) -> esprof.Run:
    settings = out.with_suffix(".json")
    settings.write_text(json.dumps(config | {"steps": STEPS + 20}))
    job = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", demo_job.__file__]
    command = [sys.executable, "-m", "esprof", "record", "-q", "-o", str(out), "--steps", str(STEPS), "--", *job]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*command, "--config", str(settings)], check=True, capture_output=True, env=environment)
    return esprof.load(out)


def show(name: str, value: float, unit: str, context: dict[str, Any]) -> None:
    print(json.dumps({"name": name, "value": round(value, 2), "unit": unit, "context": context}), flush=True)


if __name__ == "__main__":
    main()
