"""What `sync_every=` says of ranks that train apart between averages of their models, and how long their steps take.

    python -m benchmarks.local_steps [--repeats 3] [--write docs/results/local-steps.md] [--write-model-errors]

Trains a network on handwritten digits (benchmarks/jobs/skewed.py): recorded with DDP, then apart for some numbers of steps.
Two ranks share this machine, or are hosts of the test bed with slow links (needs root). Prints a Markdown row for each
number of steps apart, mean steps in ms over the repeats, and JSON lines: the median error and the worst.
"""

import argparse
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from benchmarks.figures import Figure, show, summary, table
from benchmarks.label_skew import APART, recorded
from benchmarks.model_errors import CarriedOut, write_carried_out
from benchmarks.sections import write_sections
from esprof.replay.replayed import Replayed

PLACES: Mapping[str, Sequence[str]] = {
    "on this machine": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"],
    "two hosts, 200 Mbit/s": [
        "-m",
        "benchmarks.testbed",
        "torchrun",
        "--cpu",
        "0.8",
        "0.8",
        "--rate",
        "200mbit",
        "200mbit",
        "--",
    ],
}
"""How the two ranks are started."""
JOB = ("--width", "1024", "--averages", "3")
"""A network with 2.1 MiB of gradients."""
COLUMNS = ("ranks", ">steps apart", ">together ms", ">predicted ms", ">measured ms", ">error %", ">range %")


@dataclass(frozen=True)
class Apart:
    """Steps of ranks that average their models each `every` steps, ms, in a repeat."""

    place: str
    every: int
    together: float
    """The steps of DDP that were not recorded."""
    predicted: float
    measured: float

    @property
    def error_pct(self) -> float:
        return 100 * (self.predicted / self.measured - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the tables into section `steps` of this page")
    parser.add_argument(
        "--write-model-errors", action="store_true", help="write what answers were off by for intervals"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = [
            one
            for repeat in range(options.repeats)
            for place in PLACES
            for one in trained(Path(folder) / f"{len(place)}-{repeat}", place)
        ]
    rows, figures = table(COLUMNS, list(_rows(found))), list(_figures(found, options.repeats))
    print(rows)
    for figure in figures:
        show(*figure)
    if options.write:
        write_sections(options.write, {"steps": f"{rows}\n\n{summary(figures)}"})
    if options.write_model_errors:
        answers = (CarriedOut("cpu", "sync_every", one.together, one.predicted, one.measured) for one in found)
        write_carried_out("local_steps", "python -m benchmarks.local_steps", answers)


def trained(out: Path, place: str) -> Iterator[Apart]:
    """What one job says of its steps apart, and what they took."""
    run, printed = recorded(out, PLACES[place], *JOB)
    replayed = Replayed.of(run, max_error_pct=100.0)
    plain_ns, recorded_ns = replayed.unprofiled_ns, replayed.pricer.step_ns
    specs = [f"sync_every={every}" for every in APART]
    for every, answer in zip(APART, replayed.pricer.answers(specs), strict=True):
        if answer.predicted_us is None or plain_ns is None:
            raise SystemExit(f"{answer.spec} was declined: {answer.reason}")
        # Steps apart run without the profiler: the predicted ratio is applied to steps together without it.
        predicted = answer.predicted_us / 1e3 * plain_ns / recorded_ns
        yield Apart(place, every, plain_ns / 1e6, predicted, printed[str(every)]["step_ms"])


def _rows(found: list[Apart]) -> Iterator[list[str]]:
    for place in PLACES:
        for every in APART:
            ones = [one for one in found if (one.place, one.every) == (place, every)]
            means = (
                mean(of) for of in zip(*((one.together, one.predicted, one.measured) for one in ones), strict=True)
            )
            errors = [one.error_pct for one in ones]
            span = f"{min(errors):+.1f} to {max(errors):+.1f}"
            yield [place, str(every), *(f"{ms:.1f}" for ms in means), f"{mean(errors):+.1f}", span]


def _figures(found: list[Apart], repeats: int) -> Iterator[Figure]:
    for place in PLACES:
        errors = [abs(one.error_pct) for one in found if one.place == place]
        of = {"ranks": place, "repeats": repeats}
        yield Figure("local_steps_error_median", median(errors), "%", of)
        yield Figure("local_steps_error_worst", max(errors), "%", of)


if __name__ == "__main__":
    main()
