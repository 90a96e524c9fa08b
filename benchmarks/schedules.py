"""Pipelines whose schedule was changed for real, and what `pipeline=` said beforehand.

    python -m benchmarks.schedules [--repeats 2] [--keep FOLDER]    # on the test bed: needs root
    python -m benchmarks.schedules --again FOLDER                   # predicts anew, records nothing

Each pipeline of torch.distributed.pipelining is recorded under GPipe, 1F1B and ZB1P, one after the other, `--repeats` times.
The recordings of each schedule predict the step under the others. Prints a Markdown row for each prediction, with means over
the repeats in ms, and JSON lines: the median and the worst error, and how far the recorded schedule itself is off, rebuilt
from its passes and messages as predictions are. Error and noise are those of `benchmarks.unseen`.
"""

import argparse
import itertools
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

import esprof
from benchmarks.figures import show, table
from benchmarks.settings import ALL_STEPS, Setting, noise_pct, record, slug
from benchmarks.unseen import MAX_ERROR_PCT, Answer, Verdict, ask, mean_step_ms
from esprof.replay import Replayed
from esprof.replay.engine.timeline import replay
from esprof.replay.schedules.recorded import recorded_pipeline

SCHEDULES = {"gpipe": "GPipe", "1f1b": "1F1B", "zb1p": "ZB1P"}
COLUMNS = (
    *("recorded", "what-if", ">before", ">predicted", ">measured", ">error %", ">noise %"),
    *(">saving, interval", ">saving holds"),
)


@dataclass(frozen=True)
class Pipeline:
    """A pipeline of a stage a host."""

    cpu: tuple[float, ...]
    """Cores of each host."""
    rate: str
    """Of each link, as `tc` writes it."""
    width: int
    """Of the layers, in features."""
    batch: int
    """Samples of a step."""
    microbatches: int

    @property
    def name(self) -> str:
        return f"{len(self.cpu)} stages, {self.microbatches} microbatches"

    def setting(self, schedule: str) -> Setting:
        size = ("--width", str(self.width), "--batch", str(self.batch), "--microbatches", str(self.microbatches))
        job = ("-m", "benchmarks.jobs.scheduled", "--steps", str(ALL_STEPS), "--schedule", schedule, *size)
        return Setting(job, cpu=self.cpu, rate=(self.rate,) * len(self.cpu))

    def recording(self, folder: Path, schedule: str, repeat: int) -> Path:
        return folder / f"{slug(self.name)}-{schedule}-{repeat}"


PIPELINES = (
    Pipeline((0.4, 0.4, 0.3, 0.4), "100mbit", width=384, batch=512, microbatches=8),
    Pipeline((0.5, 0.4, 0.5), "200mbit", width=512, batch=480, microbatches=6),
    Pipeline((0.5, 0.4, 0.5), "200mbit", width=512, batch=480, microbatches=12),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2)
    folders = parser.add_mutually_exclusive_group()
    folders.add_argument("--keep", type=Path, help="folder for recordings; those already there are not made again")
    folders.add_argument("--again", type=Path, metavar="FOLDER", help="predict from the recordings stored there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = options.again or options.keep or Path(made)
        if not options.again:
            record_all(folder, options.repeats)
        verdicts = [verdict for pipeline in PIPELINES for verdict in judge(pipeline, folder, options.repeats)]
        rebuilt = {pipeline.name: rebuilt_error_pct(pipeline, folder, options.repeats) for pipeline in PIPELINES}
    print(table(COLUMNS, map(row, verdicts)))
    errors = [abs(verdict.error_pct) for verdict in verdicts if verdict.answers]
    context = {"answers": len(errors), "refused": len(verdicts) - len(errors)}
    if errors:
        show("schedule_error_median", median(errors), "%", context)
        show("schedule_error_worst", max(errors), "%", context)
    for name, worst in rebuilt.items():
        show("rebuilt_schedule_error_worst", worst, "%", {"pipeline": name})


def record_all(folder: Path, repeats: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for repeat in range(repeats):
        for pipeline in PIPELINES:
            for schedule in SCHEDULES:
                record(pipeline.setting(schedule), pipeline.recording(folder, schedule, repeat))
                print(f"{pipeline.name}, {schedule}, repeat {repeat}", file=sys.stderr)


def judge(pipeline: Pipeline, folder: Path, repeats: int) -> Iterator[Verdict]:
    """Each schedule predicted from the recordings of the others."""
    runs = {name: [pipeline.recording(folder, name, repeat) for repeat in range(repeats)] for name in SCHEDULES}
    step_ms = {name: [mean_step_ms(esprof.load(run)) for run in runs[name]] for name in SCHEDULES}
    for before, after in itertools.permutations(SCHEDULES, 2):
        spec = f"pipeline={after}"
        said = [ask(run, [spec])[spec] for run in runs[before]]
        answers = [one for one in said if isinstance(one, Answer)]
        reasons = [one for one in said if isinstance(one, str)]
        kind = f"{pipeline.name}, {SCHEDULES[before]}"
        yield Verdict(kind, spec, step_ms[before], step_ms[after], answers, reasons)


def rebuilt_error_pct(pipeline: Pipeline, folder: Path, repeats: int) -> float:
    """By how much the step of a recording differs at worst once its own schedule is rebuilt. Raises NoPipeline."""
    off = []
    for schedule, repeat in itertools.product(SCHEDULES, range(repeats)):
        run = esprof.load(pipeline.recording(folder, schedule, repeat))
        recorded = Replayed.of(run, max_error_pct=MAX_ERROR_PCT).built.dfg
        rebuilt = recorded_pipeline(run, recorded).graph()
        off.append(abs(replay(rebuilt).step_ns().mean() / replay(recorded).step_ns().mean() - 1))
    return 100 * float(max(off))


def row(verdict: Verdict) -> list[str]:
    """A prediction's row of the table; a refusal states its reason in place of a step."""
    answers = verdict.answers
    predicted = f"{mean(one.predicted for one in answers):.1f}" if answers else verdict.reasons[0]
    return [
        verdict.kind,
        f"`{verdict.spec}`",
        f"{mean(verdict.before):.1f}",
        predicted,
        f"{mean(verdict.after):.1f}",
        f"{verdict.error_pct:+.1f}" if answers else "",
        f"{noise_pct(verdict.before):.1f}, {noise_pct(verdict.after):.1f}",
        " … ".join(f"{mean(ends):.0f}" for ends in zip(*(one.saving for one in answers), strict=True)),
        f"{verdict.gains_held} of {len(answers)}",
    ]


if __name__ == "__main__":
    main()
