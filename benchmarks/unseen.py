"""What-ifs carried out on kinds of jobs that esprof was not made with, and what it said beforehand.

    python -m benchmarks.unseen [--repeats 2] [--only REGEX] [--keep FOLDER]    # on the test bed: needs root
    python -m benchmarks.unseen --again FOLDER [--only REGEX]                   # predicts anew, carries nothing out

Each kind of job is recorded as it is and with each of its changes, interleaved, `--repeats` times. The recordings
are stored, and in `measured.json` the mean step of each in ms. Predictions use the recordings of the unchanged job, so that
another version of esprof can be held against the same truth. Prints a JSON line a case, then figures over all of them.

A step is measured by the recorder's own rows of the steps that a prediction is about, without any rule of replay. `error`
is that of the means over repeats, `noise` how far the repeats of one setting lie apart; an error counts above noise by
what it exceeds the larger of the two noises. Every repeat's answer counts by itself for how many intervals hold: of the
step time, the mean measured with the change; of the gain, the difference of the two means.
"""

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

import esprof
from benchmarks.figures import show
from benchmarks.settings import ALL_STEPS, Setting, changed, noise_pct, record, slug
from esprof.replay import Replayed, answer

AS_IT_IS = "as it is"
MAX_ERROR_PCT = 100.0
"""As of `esprof replay`: by its default, answers on noisy recordings would be refused."""

Measured = dict[str, dict[str, list[float]]]
"""Mean steps in ms, one a repeat, by kind of job and by what-if that was carried out (or AS_IT_IS)."""


@dataclass(frozen=True)
class Kind:
    """A kind of job on its hosts, and the what-ifs that are carried out on it."""

    name: str
    setting: Setting
    specs: tuple[str, ...]


def job(name: str) -> tuple[str, ...]:
    return ("-m", f"benchmarks.jobs.{name}", "--steps", str(ALL_STEPS))


KINDS = (
    Kind(
        "sharded",
        Setting(job("sharded"), cpu=(0.7, 0.7), rate=("200mbit", "200mbit")),
        ("network=0.5x", "cpu=0.7x", "rank1.cpu=0.5x", "network=2x,cpu=0.7x"),
    ),
    Kind(
        "accumulated",
        Setting(job("accumulated"), cpu=(0.8, 0.5), rate=("100mbit", "100mbit")),
        ("network=2x", "cpu=0.7x", "rank0.cpu=0.5x", "network=0.5x,rank1.cpu=1.5x"),
    ),
    Kind(
        "flat",
        Setting(job("flat"), cpu=(0.6, 0.6), rate=("200mbit", "200mbit")),
        ("network=2x", "cpu=0.7x", "rank1.cpu=0.5x", "network=2x,cpu=0.7x"),
    ),
    Kind(
        "residual",
        Setting(job("residual"), cpu=(0.6, 0.5, 0.4), rate=("200mbit", "200mbit", "100mbit")),
        ("network=2x", "cpu=0.7x", "rank2.cpu=0.5x", "network=0.5x,rank0.cpu=0.7x"),
    ),
    Kind(
        "pipeline",
        Setting(job("pipeline"), cpu=(0.5, 0.35, 0.4, 0.35), rate=("100mbit",) * 4),
        ("network=0.5x", "rank1.cpu=0.5x", "network=2x,cpu=0.7x"),
    ),
)


@dataclass(frozen=True)
class Answer:
    """What was said of one recording, ms: the step with the change, its interval, and that of what the change saves."""

    predicted: float
    low: float
    high: float
    saving: tuple[float, float]
    known_error_pct: float


@dataclass(frozen=True)
class Verdict:
    """A what-if of one kind of job: mean steps measured as it is and with the change, ms, a repeat each, and what was said.

    `answers` lack repeats in which the answer was refused; `reasons` are those of the refusals.
    """

    kind: str
    spec: str
    before: Sequence[float]
    after: Sequence[float]
    answers: Sequence[Answer]
    reasons: Sequence[str]

    @property
    def error_pct(self) -> float:
        return 100 * (mean(answer.predicted for answer in self.answers) / mean(self.after) - 1)

    @property
    def noise_pct(self) -> float:
        return max(noise_pct(self.before), noise_pct(self.after))

    @property
    def above_noise_pct(self) -> float:
        return max(0.0, abs(self.error_pct) - self.noise_pct)

    @property
    def steps_held(self) -> int:
        """How many answers have an interval that holds the true step time."""
        return sum(answer.low <= mean(self.after) <= answer.high for answer in self.answers)

    @property
    def gains_held(self) -> int:
        """How many answers have an interval that holds what the change truly takes off a step."""
        gain = mean(self.before) - mean(self.after)
        return sum(answer.saving[0] <= gain <= answer.saving[1] for answer in self.answers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument(
        "--only", type=re.compile, default=re.compile(""), help="cases whose `KIND WHAT-IF` this matches"
    )
    folders = parser.add_mutually_exclusive_group()
    folders.add_argument("--keep", type=Path, help="folder for recordings; those already there are not made again")
    folders.add_argument("--again", type=Path, metavar="FOLDER", help="predict from the recordings stored there")
    options = parser.parse_args()
    kinds = list(chosen(options.only))
    if not kinds:
        parser.error(f"no case matches {options.only.pattern!r}")
    with tempfile.TemporaryDirectory() as folder:
        runs = options.again or options.keep or Path(folder)
        if not options.again:
            carry_out(kinds, runs, options.repeats)
        measured: Measured = json.loads((runs / "measured.json").read_text())
        verdicts = [verdict for kind in kinds if kind.name in measured for verdict in judge(kind, measured, runs)]
    for verdict in verdicts:
        show_case(verdict)
    show_all(verdicts)


def chosen(only: re.Pattern[str]) -> Iterator[Kind]:
    """The kinds with those what-ifs that are asked for."""
    for kind in KINDS:
        specs = tuple(spec for spec in kind.specs if only.search(f"{kind.name} {spec}"))
        if specs:
            yield Kind(kind.name, kind.setting, specs)


def carry_out(kinds: Iterable[Kind], folder: Path, repeats: int) -> None:
    """Record each kind as it is and with its changes made, interleaved, and write `measured.json` after each recording."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "measured.json"
    measured: Measured = json.loads(file.read_text()) if file.exists() else {}
    for repeat in range(repeats):
        for kind in kinds:
            for spec in (AS_IT_IS, *kind.specs):
                setting = kind.setting if spec == AS_IT_IS else changed(kind.setting, spec)
                step_ms = mean_step_ms(record(setting, recording(folder, kind.name, spec, repeat)))
                # A recording that was there already takes the place of its own figure.
                figures = measured.setdefault(kind.name, {}).setdefault(spec, [])
                figures[repeat : repeat + 1] = [round(step_ms, 3)]
                file.write_text(json.dumps(measured, indent=1))
                print(f"{kind.name}, {spec}: {step_ms:.1f} ms", file=sys.stderr)


def recording(folder: Path, kind: str, spec: str, repeat: int) -> Path:
    return folder / f"{kind}-{slug(spec)}-{repeat}"


def mean_step_ms(run: esprof.Run) -> float:
    """Mean over all ranks of the steps in the window, which are its second to its last."""
    ranks = []
    for rank in run.ranks:
        steps = run.steps(rank)
        timed = [phase == "timed" for phase in steps.texts("phase")]
        ranks.append(float(steps.ints("dur_ns")[timed][1:].mean()) / 1e6)
    return mean(ranks)


def judge(kind: Kind, measured: Measured, folder: Path) -> Iterator[Verdict]:
    """Ask esprof about each recording of the kind as it is, and hold the answers against what was measured.

    Changes that were not carried out are passed over.
    """
    truths = measured[kind.name]
    specs = [spec for spec in kind.specs if truths.get(spec)]
    asked = [ask(recording(folder, kind.name, AS_IT_IS, repeat), specs) for repeat in range(len(truths[AS_IT_IS]))]
    for spec in specs:
        said = [one[spec] for one in asked]
        answers = [one for one in said if isinstance(one, Answer)]
        reasons = [one for one in said if isinstance(one, str)]
        yield Verdict(kind.name, spec, truths[AS_IT_IS], truths[spec], answers, reasons)


def ask(path: Path, specs: Sequence[str]) -> dict[str, Answer | str]:
    """The answer to each what-if, or the reason why there is none."""
    said = answer(Replayed.of(esprof.load(path), max_error_pct=MAX_ERROR_PCT), specs)
    return {
        one.spec: Answer(
            one.predicted_us / 1e3,
            one.low_us / 1e3,
            one.high_us / 1e3,
            (one.saving_low_us / 1e3, one.saving_high_us / 1e3),
            said.known_error_pct,
        )
        if one.answered
        else str(one.reason)
        for one in said.what_if
    }


def show_case(verdict: Verdict) -> None:
    """Print a case: means over the repeats, and how many intervals of all answers hold."""
    context = {
        "kind": verdict.kind,
        "what_if": verdict.spec,
        "repeats": len(verdict.after),
        "before_ms": rounded_mean(verdict.before),
        "after_ms": rounded_mean(verdict.after),
        "noise_pct": {
            "before": round(noise_pct(verdict.before), 1),
            "after": round(noise_pct(verdict.after), 1),
        },
    }
    if verdict.reasons:
        refused = context | {"reasons": sorted(set(verdict.reasons))}
        show("unseen_what_if_refused", len(verdict.reasons), "answers", refused)
    if verdict.answers:
        answers = verdict.answers
        said = {
            "predicted_ms": rounded_mean([answer.predicted for answer in answers]),
            "interval_ms": [
                rounded_mean([answer.low for answer in answers]),
                rounded_mean([answer.high for answer in answers]),
            ],
            "known_error_pct": rounded_mean([answer.known_error_pct for answer in answers]),
            "above_noise_pct": round(verdict.above_noise_pct, 1),
            "held": {"step": verdict.steps_held, "gain": verdict.gains_held, "of": len(answers)},
        }
        show("unseen_what_if_error", verdict.error_pct, "%", context | said)


def rounded_mean(values: Sequence[float]) -> float:
    return round(mean(values), 1)


def show_all(verdicts: Sequence[Verdict]) -> None:
    """Print median and worst of the answered cases, and the share of intervals that hold."""
    answered = [verdict for verdict in verdicts if verdict.answers]
    if not answered:
        return
    cases = {"cases": len(answered), "refused": len(verdicts) - len(answered)}
    errors = [abs(verdict.error_pct) for verdict in answered]
    above = [verdict.above_noise_pct for verdict in answered]
    show("unseen_what_if_error_median", median(errors), "%", cases)
    show("unseen_what_if_error_mean", mean(errors), "%", cases)
    show("unseen_what_if_error_worst", max(errors), "%", cases)
    show("unseen_what_if_above_noise_median", median(above), "%", cases)
    show("unseen_what_if_above_noise_mean", mean(above), "%", cases)
    show("unseen_what_if_above_noise_worst", max(above), "%", cases)
    answers = sum(len(verdict.answers) for verdict in answered)
    steps = sum(verdict.steps_held for verdict in answered)
    gains = sum(verdict.gains_held for verdict in answered)
    show("unseen_what_if_steps_held", 100 * steps / answers, "%", {"answers": answers})
    show("unseen_what_if_gains_held", 100 * gains / answers, "%", {"answers": answers})


if __name__ == "__main__":
    main()
