"""`esprof verify`."""

import shlex
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

import click

from esprof import Run
from esprof.analyzers.verified.answer import Pair, pairs_of, verified
from esprof.analyzers.verified.prediction import NoPrediction, job_class, name_of, predict
from esprof.analyzers.verified.sides import KnobValue, read_back, refuse_other_job, side
from esprof.core.credentials import without_secrets
from esprof.core.errors import EXIT_OK, EXIT_REGRESSION, InputError, UsageError
from esprof.core.text import printable
from esprof.recorder.knobs import KNOBS
from esprof.recorder.launcher.launch import collect, launch, prepare, require_torch
from esprof.replay.whatif.grammar import parse
from esprof.replay.whatif.pricing import MAX_ERROR_PCT
from esprof.reports import units
from esprof.reports.commands.common import answer, json_option, open_run, say, staging_folder, status
from esprof.reports.commands.values import Finite
from esprof.reports.terminal.verified import draw_verified
from esprof.run import files
from esprof.run.logs import LEDGER, ReplayPrediction
from esprof.run.raw.settings import Settings
from esprof.run.run import WarningCode

_SKIP, _STEPS, _REPEATS = 5, 40, 3
_TOLERANCE_PCT = 5.0
_STDERR = 2
_TERMS = ", ".join(f"{knob.name}={knob.example}" for knob in KNOBS.values() if knob.is_term)

_Values = Mapping[str, str]
"""Name of a knob -> its value, as read back."""


@dataclass(frozen=True)
class VerifyPlan:
    """The job's command, and the values of the knobs in every other run."""

    command: tuple[str, ...]
    values: _Values
    settings: Settings
    """Without knobs."""

    @property
    def steps(self) -> int:
        return self.settings.steps if self.settings.ends_early else 0

    def settings_of(self, *, changed: bool) -> Settings:
        """The settings of a run with the change, or of one without, which only reads the knobs."""
        return replace(
            self.settings, knobs=tuple((name, value if changed else None) for name, value in self.values.items())
        )


class _BehindDashes(click.Command):
    """A command whose CMD must follow `--`, since options of CMD could be taken for options of verify."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        has_dashes = "--" in args
        rest = super().parse_args(ctx, args)
        if ctx.params.get("job") and not has_dashes:
            raise click.UsageError("put -- before CMD", ctx)
        return rest


@click.command("verify", cls=_BehindDashes)
@click.argument("recorded", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("job", metavar="-- CMD…", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--what-if",
    "spec",
    metavar="SPEC",
    help=f"Scenario to predict and apply, for example {_TERMS}. data[ready]=0 prepares all batches in advance.",
)
@click.option(
    "--set",
    "setting",
    metavar="KNOB=VALUE",
    help="Apply and measure a setting without a prediction, such as threads=2.",
)
@click.option(
    "--repeats",
    metavar="N",
    type=click.IntRange(1),
    default=_REPEATS,
    show_default=True,
    help="Number of pairs of runs, without and with the change.",
)
@click.option(
    "--skip",
    metavar="N",
    type=click.IntRange(1),
    default=_SKIP,
    show_default=True,
    help="Warm-up steps of each run, not measured.",
)
@click.option(
    "--steps",
    metavar="N",
    type=click.IntRange(0),
    default=_STEPS,
    show_default=True,
    help="Measured steps of each run; then the job is ended. 0: run the job to its end.",
)
@click.option(
    "--tolerance",
    metavar="PERCENT",
    type=Finite(min=0),
    default=_TOLERANCE_PCT,
    show_default=True,
    help=(
        "Accept a prediction with an error of at most PERCENT, even if the measured step time is outside the "
        "predicted interval."
    ),
)
@click.option("-q", "--quiet", is_flag=True, help="Print only errors and warnings.")
@json_option
def command(
    recorded: Path,
    job: tuple[str, ...],
    spec: str | None,
    setting: str | None,
    repeats: int,
    skip: int,
    steps: int,
    tolerance: float,
    quiet: bool,
    as_json: bool,
) -> int:
    """Apply a change to a job and compare it with the prediction.

    RUN is a recording of CMD. First, replay's prediction for the change is written to RUN/ledger.jsonl. Then CMD runs
    alternately without and with the change, without the profiler. esprof applies the change in the job's processes and
    checks that it took effect. The measured step time is written to the ledger as well. Output of CMD goes to stderr.

    Exit code 3: the measured step time is outside the predicted interval, and also differs from the prediction by
    more than --tolerance, and the repeats agree well enough to say so. Exit code 1: the change did not take effect.

    bucket_mb needs a RUN that was recorded with --shapes.

    \b
    esprof verify RUN --what-if bucket_mb=4 -- torchrun --nproc-per-node 2 train.py
    esprof verify RUN --set threads=2 -- python train.py
    """
    if (spec is None) == (setting is None):
        raise UsageError("name the change with either --what-if or --set", remedy=_known())
    values = _of_scenario(spec) if spec is not None else _of_setting(setting or "")
    if not job:
        raise UsageError("no command to run", remedy="esprof verify RUN --what-if SPEC -- torchrun … train.py")
    run = _open(recorded)
    require_torch(job[0])
    if run.meta.command and run.meta.command != without_secrets(job):
        say(f"warning: RUN is a recording of another command: {printable(shlex.join(run.meta.command), 2_000)}")
    made = None
    if spec is not None:
        made = _predicted(run, spec, tolerance)
        LEDGER.append(recorded, made)
        if not quiet:
            before, after = units.duration(made.step_us), units.duration(made.predicted_us)
            say(f"predicted for {spec}: a step of {after} instead of {before}, both under the profiler")
    settings = Settings(windows=False, skip=skip, warmup=0, steps=max(steps, 1), stack_steps=0, ends_early=steps > 0)
    with _ended_in_order():
        pairs, knobs = _measure(VerifyPlan(job, values, settings), run, repeats, quiet=quiet)
    if made is not None:
        LEDGER.append(recorded, pairs_of(pairs).outcome(made, "verify"))
    result = verified(spec or setting or "", job_class(run), pairs, knobs, made, steps=steps, max_error_pct=tolerance)
    answer(result, draw_verified, as_json=as_json)
    return EXIT_REGRESSION if result.verdict == "missed" else EXIT_OK


# The requested change


def _of_scenario(spec: str) -> _Values:
    """The knobs that apply a scenario. Raises UsageError if one of its terms has no knob."""
    values = {}
    for term in parse(spec):
        name = name_of(term)
        knob = KNOBS.get(name)
        if knob is None or not knob.is_term:
            raise UsageError(f"no knob applies {term.text}", remedy=_known())
        if term.only or term.device is not None:
            raise UsageError(f"{term.text}: a knob is set on all ranks", remedy=_known())
        values[name] = _spelled(name, term.text.rpartition("=")[2].strip())
    return values


def _of_setting(text: str) -> _Values:
    name, _, value = text.partition("=")
    if name not in KNOBS:
        raise UsageError(f"there is no knob {name!r}", remedy=_known())
    return {name: _spelled(name, value)}


def _spelled(name: str, value: str) -> str:
    try:
        return KNOBS[name].spelled(value)
    except ValueError as error:
        raise UsageError(f"{name}={value}: {error}") from error


def _known() -> str:
    others = ", ".join(f"{knob.name}={knob.example}" for knob in KNOBS.values() if not knob.is_term)
    return f"Knobs: {_TERMS}; with --set only: {others}."


def _open(recorded: Path) -> Run:
    run, _ = open_run([str(recorded)])
    if not files.is_complete(recorded):
        raise UsageError(f"{recorded} is not a Run directory", remedy="Record CMD first.")
    return run


def _predicted(run: Run, spec: str, tolerance_pct: float) -> ReplayPrediction:
    """The prediction. A tolerance above the usual replay error applies to the replay error as well."""
    try:
        with status("Replaying"):
            return predict(run, spec, max(MAX_ERROR_PCT, tolerance_pct))
    except NoPrediction as declined:
        remedy = f"`esprof verify RUN --set {spec} -- CMD…` measures the change without a prediction."
        raise NoPrediction(declined.reason, path=run.path, remedy=remedy) from declined


# The runs


def _measure(plan: VerifyPlan, recorded: Run, repeats: int, *, quiet: bool) -> tuple[list[Pair], tuple[KnobValue, ...]]:
    """Run the job alternately without and with the change. A change without effect is noticed after the first pair."""
    pairs, knobs = list[Pair](), tuple[KnobValue, ...]()
    with staging_folder(recorded.path or Path("run")) as folder:
        for repeat in range(repeats):
            runs, sides = [], []
            for changed in (False, True):
                number = 2 * repeat + changed + 1
                runs.append(_run(plan, folder / f"run-{number}", changed=changed))
                refuse_other_job(recorded, runs[-1])
                sides.append(side(runs[-1], plan.settings.skip, plan.steps))
                if not quiet:
                    step = f"{units.duration(sides[-1].step_us)} a step"
                    say(f"run {number} of {2 * repeats}, {_variant(plan, changed)}: {step}")
            knobs = read_back(plan.values, *runs)
            pairs.append(Pair(before=sides[0], after=sides[1]))
    return pairs, knobs


def _run(plan: VerifyPlan, out: Path, *, changed: bool) -> Run:
    """Run the job once.

    Raises EsprofError if it failed before its last measured step, and KeyboardInterrupt or SystemExit after a signal.
    """
    settings, stopped_by = plan.settings_of(changed=changed), list[int]()
    raw = prepare(plan.command, out, settings)
    exit_code = launch(plan.command, raw, stdout=_STDERR, on_stop=stopped_by.append)
    if stopped_by:
        raise KeyboardInterrupt if stopped_by[0] == signal.SIGINT else SystemExit(128 + stopped_by[0])
    with status("Reading what was recorded"):
        made = collect(plan.command, out, settings, exit_code)
    if made.run is None:
        assert made.trouble is not None
        raise made.trouble
    if any(warning.code == WarningCode.STILL_RUNNING for warning in made.run.warnings):
        raise InputError(
            "processes of the job are still running after the command ended, and would disturb the next run",
            remedy="Let the command wait for all processes that it starts.",
        )
    # The job is ended during a step: its exit code does not matter once all steps are recorded.
    if exit_code and not (plan.steps and _has_all(made.run, plan)):
        raise InputError(f"{_variant(plan, changed)}, the command ended with exit code {exit_code}")
    return made.run


def _has_all(run: Run, plan: VerifyPlan) -> bool:
    last = plan.settings.probe_at - 1
    return all((run.steps(rank).ints("step") == last).any() for rank in run.ranks)


def _variant(plan: VerifyPlan, changed: bool) -> str:
    return (
        "with " + ",".join(f"{name}={value}" for name, value in plan.values.items())
        if changed
        else "without the change"
    )


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit, so that the block removes its temporary files. A running job gets
    them."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
