"""`padding=0`, carried out: what replay says packing gives, and what a packed step takes.

    python -m benchmarks.padding [--repeats 3] [--steps 24]

Records a small GPT (benchmarks/jobs/padded_gpt.py) with padded batches and with the same sequences packed, interleaved
(A-B-A-B), and predicts the packed step from each padded recording. Prints a JSON line for each repeat: the error of the
predicted step, and that of the linear waste as the only factor; and the median error of all.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import esprof
from benchmarks.figures import show
from esprof import Run
from esprof.replay.replayed import Replayed
from esprof.replay.whatif.graph.padded_tokens import padding_by_rank

_JOB = Path(__file__).parent / "jobs" / "padded_gpt.py"
_MARGIN = 9
"""Steps of the job that are not recorded."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=24)
    options = parser.parse_args()
    errors = []
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(options.repeats):
            padded = _record(Path(folder) / f"padded-{repeat}", options.steps, repeat)
            packed = _record(Path(folder) / f"packed-{repeat}", options.steps, repeat, "--packed")
            errors.append(_show(padded, packed, repeat))
    show("padding_error_median", median(map(abs, errors)), "%", {"repeats": options.repeats})


def _record(out: Path, steps: int, seed: int, *more: str) -> Run:
    window = ["--skip", "3", "--warmup", "2", "--steps", str(steps), "--stack-steps", "0"]
    job = [sys.executable, str(_JOB), "--steps", str(steps + _MARGIN), "--seed", str(seed), *more]
    command = [sys.executable, "-m", "esprof", "record", "-q", "-o", str(out), *window, "--", *job]
    subprocess.run(command, check=True, capture_output=True)
    return esprof.load(out)


def _show(padded: Run, packed: Run, repeat: int) -> float:
    before, after = Replayed.of(padded), Replayed.of(packed)
    (answer,) = before.pricer.answers(["padding=0"])
    if answer.predicted_us is None:
        raise SystemExit(f"padding=0 was declined: {answer.reason}")
    step_ms, packed_ms, predicted_ms = (
        before.pricer.step_ns / 1e6,
        after.pricer.step_ns / 1e6,
        answer.predicted_us / 1e3,
    )
    waste = padding_by_rank(padded)[0].waste
    linear_ms = step_ms * (1 - waste.of_tokens)
    error = 100 * (predicted_ms / packed_ms - 1)
    figures = {
        "padded_ms": round(step_ms, 1),
        "predicted_ms": round(predicted_ms, 1),
        "packed_ms": round(packed_ms, 1),
        "waste_of_tokens": round(waste.of_tokens, 4),
        "waste_of_pairs": round(waste.of_pairs, 4),
        "error_if_all_is_linear_pct": round(100 * (linear_ms / packed_ms - 1), 1),
    }
    show("padding_error", error, "%", {"repeat": repeat} | figures)
    return error


if __name__ == "__main__":
    main()
