"""Pipelines whose stages, schedule or microbatches were changed for real, and what one recording said beforehand.

    python -m benchmarks.pipelines [--quick | --only REGEX] [--keep FOLDER]    # on the test bed: needs root
    python -m benchmarks.pipelines --again FOLDER [--each]                     # predicts anew, records nothing

With `--write docs/results/unseen-jobs.md` the tables are put into that page.

A GPT is divided into stages on unlike hosts. One recording predicts all divisions under each schedule; the one with the
shortest predicted step is advised. The predictions are written to FOLDER before each is carried out. The same job with 4, 8
and 16 microbatches predicts each from the others. Right before each recording some steps of a reference job are recorded:
measured times are scaled by it to the speed that the machine had when the predicting recording was made.

Prints a Markdown row for each prediction, times in ms, and JSON lines: median and worst error, how many intervals of steps
and savings hold, by how much the advised one takes longer than the best, and by how much the reference job's slowest
recording is slower than its fastest. `--quick` tries two divisions of the first pipeline. `--each` predicts each division
from each other one, too, and `--write-model-errors` writes what answers were off by.
"""

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import esprof
from benchmarks.figures import Figure, show, summary, table
from benchmarks.model_errors import CarriedOut, write_carried_out
from benchmarks.sections import write_sections
from benchmarks.settings import Setting, record, slug
from benchmarks.unseen import Answer, ask, mean_step_ms

STEPS = 10
"""Steps of a recording."""
REFERENCE_STEPS = 6
"""Steps of a recording of the reference job."""
SCHEDULES = ("1f1b", "gpipe", "interleaved")
AS_RECORDED = "recorded"
COLUMNS = ("pipeline", "what-if", ">predicted", ">interval", ">measured", ">error %", "saving holds")

Counts = tuple[int, ...]
Said = dict[str, Answer | str]


@dataclass(frozen=True)
class Job:
    """A pipeline of a GPT on hosts, as it is recorded and with changes."""

    cpu: tuple[float, ...]
    """Cores of each host."""
    stages: Counts
    """Blocks of each stage."""
    schedule: str = "1f1b"
    microbatches: int = 8
    batch: int = 24
    """Samples of a step."""

    def setting(self, steps: int = STEPS) -> Setting:
        """The job on its hosts, long enough to record so many steps."""
        size = ("--microbatches", str(self.microbatches), "--batch", str(self.batch))
        job = ("--stages", spelt(self.stages), "--schedule", self.schedule, *size, "--steps", str(steps + 7))
        return Setting(("-m", "benchmarks.jobs.staged", *job), cpu=self.cpu, rate=("200mbit",) * len(self.cpu))

    def recording(self, folder: Path, name: str = "") -> Path:
        what = f"{len(self.cpu)} hosts {spelt(self.stages)} {self.schedule} {self.microbatches} {name}"
        return folder / slug(what.strip())


@dataclass(frozen=True)
class Trial:
    """A recorded job and what is predicted from its recording: each change by its what-if."""

    name: str
    recorded: Job
    changes: dict[str, Job]
    reference: Job
    """Recorded right before each of the other jobs, for the speed of the machine."""
    kind: str = "microbatches"
    """What its figures are called: `division`, whose change with the shortest step is advised, `microbatches` or `each`."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument("--quick", action="store_true", help="two divisions of one pipeline, no other microbatches")
    parts.add_argument("--only", type=re.compile, default=re.compile(""), help="trials whose name this matches")
    parser.add_argument("--each", action="store_true", help="with --again: predict each division from each other, too")
    parser.add_argument(
        "--write-model-errors", action="store_true", help="write what answers were off by for intervals"
    )
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help="put the tables into section `pipelines` of this page"
    )
    folders = parser.add_mutually_exclusive_group()
    folders.add_argument("--keep", type=Path, help="folder for recordings; those already there are not made again")
    folders.add_argument("--again", type=Path, metavar="FOLDER", help="predict from the recordings stored there")
    options = parser.parse_args()
    chosen = [trial for trial in trials(options.quick) if options.only.search(trial.name)]
    if not chosen:
        parser.error(f"no trial matches {options.only.pattern!r}")
    if options.each:
        if not options.again:
            parser.error("--each needs --again")
        chosen += [other for trial in chosen if trial.kind == "division" for other in each_of(trial)]
    with tempfile.TemporaryDirectory() as made:
        folder = options.again or options.keep or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        said = [carried_out(trial, folder, is_again=options.again is not None) for trial in chosen]
        steps_ms = [measured(trial, folder) for trial in chosen]
        figures = list(speeds([trial for trial in chosen if trial.kind == "division"], folder))
    figures += of_all(chosen, said, steps_ms)
    predictions = table(COLUMNS, (line for three in zip(chosen, said, steps_ms, strict=True) for line in rows(*three)))
    print(predictions)
    for figure in figures:
        show(*figure)
    if options.write:
        write_sections(options.write, {"pipelines": f"{predictions}\n\n{summary(figures)}"})
    if options.write_model_errors:
        answers = [one for three in zip(chosen, said, steps_ms, strict=True) for one in carried_out_answers(*three)]
        command = "python -m benchmarks.pipelines" + (" --again FOLDER --each" if options.each else "")
        write_carried_out("pipelines", command, answers)


def trials(is_quick: bool) -> Iterator[Trial]:
    of_three = ((4, 4, 4), (5, 2, 5), (4, 3, 5), (5, 3, 4), (3, 4, 5))
    of_four = ((3, 3, 3, 3), (4, 2, 3, 3), (3, 2, 3, 4), (4, 2, 4, 2), (2, 4, 3, 3))
    yield divided(Job((0.6, 0.4, 0.6), of_three[0], microbatches=6), of_three[:2] if is_quick else of_three)
    if not is_quick:
        yield divided(Job((0.5, 0.3, 0.4, 0.4), of_four[0]), of_four)
        jobs = {count: Job((0.5, 0.5, 0.5), (4, 4, 4), microbatches=count, batch=32) for count in (4, 8, 16)}
        for before, job in jobs.items():
            changes = {f"microbatches={count}": other for count, other in jobs.items() if count != before}
            yield Trial(f"{before} microbatches", job, changes, reference=jobs[4])


def divided(job: Job, divisions: Sequence[Counts]) -> Trial:
    """All schedules of all divisions of the blocks among the hosts. Interleaved, a host's blocks are halved."""
    changes = {}
    for counts in divisions:
        halves = (*(count - count // 2 for count in counts), *(count // 2 for count in counts))
        for schedule in SCHEDULES:
            stages = halves if schedule == "interleaved" else counts
            changes[f"stages={spelt(stages)},pipeline={schedule}"] = replace(job, stages=stages, schedule=schedule)
    return Trial(f"{len(job.cpu)} hosts", job, changes, reference=job, kind="division")


def each_of(trial: Trial) -> Iterator[Trial]:
    """The same changes, predicted from the recording of each of them."""
    for spec, job in trial.changes.items():
        if job != trial.recorded:
            yield Trial(f"{trial.name}, {spec}", job, trial.changes, trial.reference, kind="each")


def spelt(counts: Counts) -> str:
    return "+".join(map(str, counts))


def carried_out(trial: Trial, folder: Path, is_again: bool) -> Said:
    """What the recording says of each change, before the changes are carried out."""
    path = trial.recorded.recording(folder)
    if is_again:
        return ask(path, list(trial.changes))
    record_after_reference(trial.reference, trial.recorded, folder)
    said = ask(path, list(trial.changes))
    steps = {spec: one if isinstance(one, str) else one.predicted for spec, one in said.items()}
    (folder / f"{slug(trial.name)}.json").write_text(json.dumps(steps, indent=1))
    for spec, change in trial.changes.items():
        record_after_reference(trial.reference, change, folder)
        print(f"{trial.name}, {spec}", file=sys.stderr)
    return said


def record_after_reference(reference: Job, job: Job, folder: Path) -> None:
    record(reference.setting(REFERENCE_STEPS), reference_of(job, folder), steps=REFERENCE_STEPS)
    record(job.setting(), job.recording(folder), steps=STEPS)


def reference_of(job: Job, folder: Path) -> Path:
    """The recording of the reference job from right before that of `job`."""
    return job.recording(folder, "reference")


def reference_ms(trial: Trial, folder: Path) -> dict[str, float]:
    """Mean step in ms of the reference job right before each change, and before AS_RECORDED."""
    jobs = {AS_RECORDED: trial.recorded, **trial.changes}
    return {spec: mean_step_ms(esprof.load(reference_of(job, folder))) for spec, job in jobs.items()}


def measured(trial: Trial, folder: Path) -> dict[str, float]:
    """Mean step in ms of each change and AS_RECORDED, at the speed that the machine had when the job was recorded."""
    reference, jobs = reference_ms(trial, folder), {AS_RECORDED: trial.recorded, **trial.changes}
    return {
        spec: mean_step_ms(esprof.load(job.recording(folder))) * reference[AS_RECORDED] / reference[spec]
        for spec, job in jobs.items()
    }


def rows(trial: Trial, said: Said, steps_ms: dict[str, float]) -> Iterator[list[str]]:
    """A row of the table for each prediction; a refusal states its reason in place of a step."""
    for spec, one in said.items():
        after = steps_ms[spec]
        start = [trial.name, f"`{spec}`"]
        if isinstance(one, str):
            yield [*start, one, "", f"{after:.1f}", "", ""]
            continue
        error = 100 * (one.predicted / after - 1)
        holds = "yes" if saving_holds(one, steps_ms[AS_RECORDED] - after) else "no"
        interval = f"{one.low:.0f} … {one.high:.0f}"
        yield [*start, f"{one.predicted:.1f}", interval, f"{after:.1f}", f"{error:+.1f}", holds]


def saving_holds(said: Answer, saving_ms: float) -> bool:
    return said.saving[0] <= saving_ms <= said.saving[1]


def carried_out_answers(trial: Trial, said: Said, steps_ms: dict[str, float]) -> Iterator[CarriedOut]:
    """What is known of single terms: a change of stages and schedule counts for the stages, unless these stay."""
    of_kind = "microbatches" if trial.kind == "microbatches" else "stages"
    for spec, one in said.items():
        job = trial.changes[spec]
        if job == trial.recorded or isinstance(one, str):
            continue
        term = (
            "pipeline" if job.schedule != trial.recorded.schedule and job.stages == trial.recorded.stages else of_kind
        )
        yield CarriedOut("cpu", term, steps_ms[AS_RECORDED], one.predicted, steps_ms[spec])


def speeds(divisions: Sequence[Trial], folder: Path) -> Iterator[Figure]:
    """By how much the reference job's slowest recording is slower than its fastest."""
    for trial in divisions:
        steps_ms = reference_ms(trial, folder).values()
        yield Figure("reference_range", 100 * (max(steps_ms) / min(steps_ms) - 1), "%", {"pipeline": trial.name})


def of_schedules(kind: str, errors: Sequence[tuple[str, float]]) -> Iterator[Figure]:
    """The median error under each schedule, if there are several."""
    names = dict.fromkeys(name for name, _ in errors)
    for name in names if len(names) > 1 else ():
        mine = [error for schedule, error in errors if schedule == name]
        yield Figure(f"{kind}_error_median", median(mine), "%", {"schedule": name, "answers": len(mine)})


def of_all(chosen: Sequence[Trial], said: Sequence[Said], steps_ms: Sequence[dict[str, float]]) -> Iterator[Figure]:
    """The figures over all predictions of jobs that were not recorded themselves."""
    for kind in dict.fromkeys(trial.kind for trial in chosen):
        answers = [
            (one, times[spec], times[AS_RECORDED], trial.changes[spec].schedule)
            for trial, answered, times in zip(chosen, said, steps_ms, strict=True)
            for spec, one in answered.items()
            if trial.kind == kind and trial.changes[spec] != trial.recorded and isinstance(one, Answer)
        ]
        if not answers:
            continue
        errors = [abs(100 * (one.predicted / after - 1)) for one, after, *_ in answers]
        context: dict[str, object] = {"answers": len(answers)}
        yield Figure(f"{kind}_error_median", median(errors), "%", context)
        yield from of_schedules(
            kind, [(schedule, error) for (*_, schedule), error in zip(answers, errors, strict=True)]
        )
        yield Figure(f"{kind}_error_worst", max(errors), "%", context)
        steps = sum(one.low <= after <= one.high for one, after, *_ in answers)
        yield Figure(f"{kind}_steps_held", 100 * steps / len(answers), "%", context)
        savings = sum(saving_holds(one, before - after) for one, after, before, _ in answers)
        yield Figure(f"{kind}_savings_held", 100 * savings / len(answers), "%", context)
    for trial, answered, times in zip(chosen, said, steps_ms, strict=True):
        predicted = {spec: one.predicted for spec, one in answered.items() if isinstance(one, Answer)}
        if trial.kind == "division" and predicted:
            advised, best = min(predicted, key=predicted.__getitem__), min(trial.changes, key=times.__getitem__)
            context = {"pipeline": trial.name, "advised": advised, "best": best}
            yield Figure("advised_above_best", 100 * (times[advised] / times[best] - 1), "%", context)
            yield Figure("recorded_above_best", 100 * (times[AS_RECORDED] / times[best] - 1), "%", context)


if __name__ == "__main__":
    main()
