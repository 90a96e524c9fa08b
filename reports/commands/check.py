"""`esprof check`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import click
import msgspec

from esprof.analyzers.gate.rules import MAX_RUNS, METRICS, parse_rule
from esprof.core.disk import read_given
from esprof.core.errors import EXIT_OK, EXIT_REGRESSION, InputError, UsageError
from esprof.core.output import claim, write_bytes
from esprof.reports.answers.store import Kept
from esprof.reports.commands.common import (
    STDOUT,
    answer_remembered,
    json_option,
    open_run,
    output_options,
    run_argument,
    text_of,
)
from esprof.reports.commands.values import Finite

if TYPE_CHECKING:
    from esprof.analyzers.gate.baseline import Baseline
    from esprof.run.run import Run

_Style = Literal["text", "markdown", "junit", "github"]


@click.command("check")
@run_argument
@click.option(
    "--baseline",
    type=Path,
    metavar="BASE",
    help="Compare with BASE: a file written by --save-baseline, or a Run directory.",
)
@click.option(
    "--save-baseline",
    type=Path,
    metavar="BASE",
    help="Save the measurements of RUN as a baseline (- is stdout), and compare nothing.",
)
@click.option(
    "--append",
    is_flag=True,
    help=f"With --save-baseline: add RUN to the runs of BASE, of which the latest {MAX_RUNS} are retained.",
)
@click.option(
    "--fail-on",
    "rules",
    metavar="RULE",
    multiple=True,
    default=["step_time:+5%"],
    show_default=True,
    help=f"METRIC:LIMIT, such as step_time:+5% or step_time:+3ms. Repeatable. Metrics: {', '.join(METRICS)}.",
)
@click.option(
    "--alpha",
    metavar="P",
    type=Finite(0, 0.5, min_open=True, max_open=True),
    default=0.01,
    show_default=True,
    help="Probability of a false alarm, over all rules.",
)
@click.option(
    "--min-steps",
    metavar="N",
    type=click.IntRange(min=5),
    default=10,
    show_default=True,
    help="Report an inconclusive result if either run has fewer steps.",
)
@click.option(
    "--format",
    "style",
    type=click.Choice([*get_args(_Style), "json"]),
    default="text",
    show_default=True,
    help="Output format.",
)
@json_option
@output_options("-", "result")
def command(
    sources: tuple[str, ...],
    baseline: Path | None,
    save_baseline: Path | None,
    append: bool,
    rules: tuple[str, ...],
    alpha: float,
    min_steps: int,
    style: str,
    as_json: bool,
    output: Path,
    force: bool,
) -> int:
    """Compare a run with a baseline and fail on a regression.

    RUN… is one run: a Run directory, or all traces of one job (files, folders or glob patterns).

    A metric regressed (exit code 3) if its median or mean is worse than the limit allows, and a test finds the
    difference from the baseline significant. If noise hides the difference, the result is inconclusive: the check
    passes and reports how many more steps it needs. A baseline of other hardware, world size or versions is an error
    (exit code 1).

    Runs of the same code differ on a shared machine. A baseline of four or more runs tells by how much: the check then
    fails only on what exceeds that, too.

    \b
    esprof check RUN --save-baseline main.json --append
    esprof check RUN --baseline main.json --fail-on step_time:+5%
    """
    parsed = tuple(parse_rule(rule) for text in rules for rule in text.split(","))
    if as_json and style not in ("text", "json"):
        raise UsageError(f"--json and --format {style} exclude each other")
    if save_baseline is not None and baseline is None:
        if output != STDOUT or as_json or style != "text":
            raise UsageError("--save-baseline writes only the baseline", remedy="Omit -o, --json and --format.")
        if append and (save_baseline == STDOUT or force):
            raise UsageError("--append adds to a file", remedy="Name a file, and omit --force.")
        if save_baseline != STDOUT and not append:
            claim(save_baseline, force=force)
        _save(open_run(sources)[0], save_baseline, min_steps, append=append)
        return EXIT_OK
    if append:
        raise UsageError("--append needs --save-baseline")
    if baseline is None or save_baseline is not None:
        raise UsageError(
            "exactly one of --baseline and --save-baseline is needed",
            remedy="Save a baseline once (--save-baseline main.json), then compare with it (--baseline main.json).",
        )
    style = "json" if as_json else style
    asked: dict[str, Any] = {"rules": parsed, "alpha": alpha, "min_steps": min_steps}
    return answer_remembered(
        lambda: _compared(sources, baseline, asked, style, output),
        [*sources, str(baseline)],
        as_json=style == "json",
        output=output,
        force=force,
        style=style,
    )


def _compared(sources: tuple[str, ...], baseline: Path, asked: dict[str, Any], style: str, output: Path) -> Kept:
    """The answer in the form `style`; `asked` are the fields of `Options`."""
    from esprof.analyzers.gate.baseline import measure
    from esprof.analyzers.gate.check import Options, check
    from esprof.analyzers.steps.job_steps import JobSteps
    from esprof.reports.terminal.check import RENDERERS, render_text

    options = Options(**asked)
    before = _read_baseline(baseline, options.min_steps)
    run, _ = open_run(sources)
    checked = check(before, measure(JobSteps(run), before.phase), options, run.warnings)
    text = (
        RENDERERS[style](checked)
        if style in RENDERERS
        else text_of(checked, render_text, as_json=style == "json", output=output)
    )
    return Kept(text, EXIT_REGRESSION if checked.outcome == "regressed" else EXIT_OK)


def _save(run: "Run", path: Path, min_steps: int, *, append: bool) -> None:
    from esprof.analyzers.gate.baseline import SHOWN_PHASE, measure
    from esprof.analyzers.steps.job_steps import JobSteps
    from esprof.reports import units

    if append and path.exists():
        before = _read_baseline(path, min_steps)
        measured = before.with_run(measure(JobSteps(run), before.phase))
    else:
        measured = _measured(run, min_steps)
    text = msgspec.json.encode(measured) + b"\n"
    if path == STDOUT:
        click.echo(text, nl=False)
        return
    write_bytes(path, text)
    steps = len(measured.samples["step_time"])
    runs = f", with {units.plural(len(measured.earlier), 'earlier run')}" if measured.earlier else ""
    click.echo(f"Wrote {steps} {SHOWN_PHASE[measured.phase]} to {path}{runs}", err=True)


def _measured(run: "Run", min_steps: int) -> "Baseline":
    from esprof.analyzers.gate.baseline import choose_phase, measure
    from esprof.analyzers.steps.job_steps import JobSteps

    steps = JobSteps(run)
    return measure(steps, choose_phase(steps, min_steps))


def _read_baseline(path: Path, min_steps: int) -> "Baseline":
    from esprof.analyzers.gate.baseline import decode

    if path.is_dir():
        run, _ = open_run([str(path)])
        return _measured(run, min_steps)
    try:
        raw = read_given(path, "a baseline")
    except InputError as error:
        raise InputError(error.reason, path=path, remedy="Write it with `esprof check RUN --save-baseline`.") from error
    return decode(raw, path)
