"""Sets of changes that `esprof recommend --search` advises, carried out: predicted and measured gain.

    python -m benchmarks.together [--repeats 2] [--jobs mlp mixer] [--probe SECONDS] [--keep FOLDER]

Jobs on two hosts of the test bed (needs root) have slow storage, which hides their slow link. A job is recorded and probed,
the search advises a set, and only then the job is recorded as it is and with the set, interleaved (A B A B), and with each
change alone. Prints a JSON line for each figure. `benchmarks.executed` carries out single changes.
"""

import argparse
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from benchmarks.figures import show
from benchmarks.settings import ALL_STEPS, Setting, noise_pct, record
from esprof.analyzers.advisors.compression.answer import MAX_VNMSE
from esprof.analyzers.advisors.search.advise import advise_changes
from esprof.replay.replayed import Replayed

SAMPLE_MS = {"mlp": 50, "mixer": 80}
"""Jobs, and how long their storage takes for a sample. Batches have eight."""
TRIES = tuple(f"loader.workers={count}" for count in (2, 3, 4))
"""More than the hosts' 0.8 CPUs allow: these workers only wait."""
ARGUMENTS = {"loader.workers": "--workers", "bucket_mb": "--bucket-mb", "compress": "--compress"}
"""How a job is asked for each change."""
AS_IT_IS = {"loader.workers": "1"}


@dataclass(frozen=True)
class Bench:
    """One job, and where its recordings are kept."""

    job: str
    keep: Path
    probe_s: float

    def step_ms(self, changes: Mapping[str, str], name: str) -> float:
        """Mean recorded step with these changes."""
        return self.replayed(changes, name, 0).pricer.step_ns / 1e6

    def replayed(self, changes: Mapping[str, str], name: str, probe_s: float) -> Replayed:
        given = [word for term, value in (AS_IT_IS | changes).items() for word in (ARGUMENTS[term], value)]
        job = ("-m", f"benchmarks.jobs.{self.job}", "--files", str(self.keep / f"files-{self.job}"))
        # A single pass over the samples: workers do not start again.
        fixed = ("--steps", str(ALL_STEPS + 6), "--samples", "1024", "--sample-ms", str(SAMPLE_MS[self.job]))
        setting = Setting((*job, *fixed, *given), cpu=(0.8, 0.8), rate=("100mbit", "100mbit"))
        return Replayed.of(record(setting, self.keep / f"{self.job}-{name}", probe_s), max_error_pct=100)

    def carry_out(self, repeats: int) -> None:
        """Print the predicted and the measured gain of the advised set."""
        advice = advise_changes(self.replayed({}, "probed", self.probe_s), TRIES, max_vnmse=MAX_VNMSE)
        changes = dict(one.change.split("=", 1) for one in advice.decision)
        known = {term: value for term, value in changes.items() if term in ARGUMENTS}
        before, after = [], []
        for repeat in range(repeats):
            before.append(self.step_ms({}, f"before-{repeat}"))
            after.append(self.step_ms(known, f"after-{repeat}"))
        gain_pct = 100 * (1 - mean(after) / mean(before))
        details = {
            "what_if": advice.what_if,
            "before_ms": round(mean(before), 1),
            "after_ms": round(mean(after), 1),
            "predicted_ms": round(advice.value / 1e3, 1),
            "noise_pct": [round(noise_pct(one), 1) for one in (before, after)],
            "gap_pct": advice.gap_pct,
            "replays": advice.replays,
        }
        show("together_predicted", advice.gain_pct, "%", {"job": self.job})
        show("together_gained", gain_pct, "%", {"job": self.job} | details)
        for one in advice.decision:
            term, value = one.change.split("=", 1)
            if term in ARGUMENTS:
                alone = 100 * (1 - self.step_ms({term: value}, f"only-{term}") / mean(before))
                predicted = None if one.alone_us is None else round(one.alone_us / advice.baselines["now"] * 100, 1)
                show(
                    "together_gained_alone", alone, "%", {"job": self.job, "change": one.change, "predicted": predicted}
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--jobs", nargs="+", default=list(SAMPLE_MS), choices=SAMPLE_MS)
    parser.add_argument("--probe", type=float, default=60, metavar="SECONDS")
    parser.add_argument("--keep", type=Path, help="folder for the recordings; those already there are not made again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for job in options.jobs:
            Bench(job, options.keep or Path(folder), options.probe).carry_out(options.repeats)


if __name__ == "__main__":
    main()
