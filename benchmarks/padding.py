"""`padding=0`, carried out: what replay says packing gives, and what a packed step takes.

    python -m benchmarks.padding [--repeats 3] [--steps 24] [--write docs/results/batches.md]

Records a small GPT (benchmarks/jobs/padded_gpt.py) with padded batches and with the same sequences packed, interleaved
(A-B-A-B), and predicts the packed step from each padded recording. Prints a Markdown row for each repeat, with the errors of
the predicted step and of the linear waste as the only factor, and a JSON line: the median error of all.
"""

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import esprof
from benchmarks.figures import Figure, show, summary, table
from benchmarks.sections import write_sections
from esprof import Run
from esprof.replay.replayed import Replayed
from esprof.replay.whatif.graph.padded_tokens import Waste, padding_by_rank

_JOB = Path(__file__).parent / "jobs" / "padded_gpt.py"
_MARGIN = 9
"""Steps of the job that are not recorded."""
COLUMNS = (">padded ms", ">predicted ms", ">packed ms", ">error %", ">padding, tokens", ">pairs", ">error if linear %")
"""The last: the error if all work was proportional to tokens."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the tables into section `padding` of this page")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = [_packed(Path(folder), options.steps, repeat) for repeat in range(options.repeats)]
    rows = table(COLUMNS, map(_row, found))
    figure = Figure("padding_error_median", median(abs(one.error_pct) for one in found), "%", {"repeats": len(found)})
    print(rows)
    show(*figure)
    if options.write:
        write_sections(options.write, {"padding": f"{rows}\n\n{summary([figure])}"})


@dataclass(frozen=True)
class Packed:
    """Mean steps of a repeat in ms, and the padding of its batches."""

    padded: float
    predicted: float
    packed: float
    waste: Waste

    @property
    def error_pct(self) -> float:
        return 100 * (self.predicted / self.packed - 1)

    @property
    def linear_error_pct(self) -> float:
        return 100 * (self.padded * (1 - self.waste.of_tokens) / self.packed - 1)


def _packed(folder: Path, steps: int, repeat: int) -> Packed:
    padded = _record(folder / f"padded-{repeat}", steps, repeat)
    packed = _record(folder / f"packed-{repeat}", steps, repeat, "--packed")
    before, after = Replayed.of(padded), Replayed.of(packed)
    (answer,) = before.pricer.answers(["padding=0"])
    if answer.predicted_us is None:
        raise SystemExit(f"padding=0 was declined: {answer.reason}")
    waste = padding_by_rank(padded, [0])[0].waste
    return Packed(before.pricer.step_ns / 1e6, answer.predicted_us / 1e3, after.pricer.step_ns / 1e6, waste)


def _record(out: Path, steps: int, seed: int, *more: str) -> Run:
    window = ["--skip", "3", "--warmup", "2", "--steps", str(steps), "--stack-steps", "0"]
    job = [sys.executable, str(_JOB), "--steps", str(steps + _MARGIN), "--seed", str(seed), *more]
    command = [sys.executable, "-m", "esprof", "record", "-q", "-o", str(out), *window, "--", *job]
    subprocess.run(command, check=True, capture_output=True)
    return esprof.load(out)


def _row(one: Packed) -> list[str]:
    times = [f"{ms:.1f}" for ms in (one.padded, one.predicted, one.packed)]
    waste = [f"{100 * share:.1f} %" for share in (one.waste.of_tokens, one.waste.of_pairs)]
    return [*times, f"{one.error_pct:+.1f}", *waste, f"{one.linear_error_pct:+.1f}"]


if __name__ == "__main__":
    main()
