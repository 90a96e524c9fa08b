"""Whether B reaches a loss sooner than A, for a terminal."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from esprof.analyzers.comparison.target_answer import RunToTarget, TargetAnswer, TargetMeasure
from esprof.core.readable import decimal
from esprof.core.text import printable
from esprof.reports.terminal.screen import PLAIN, Screen, drawn, fact, grid, headline

_NEVER = "never"
_TITLES = {"seconds": "seconds to target", "steps": "steps to target", "seconds_per_step": "seconds a step"}


def draw_to_target(answer: TargetAnswer, screen: Screen = PLAIN) -> str:
    """The verdict, the measures apart, other targets, and each training."""
    measures = grid("", ">median A", ">median B", ">A/B", "95 % interval", ">p", padding=2)
    for one in answer.measures:
        ratio = "" if one.ratio is None else decimal(one.ratio)
        measures.add_row(
            _TITLES[one.name], _or_never(one.median_a), _or_never(one.median_b), ratio, _ends(one), f"{one.p:.2g}"
        )
    blocks: list[RenderableType] = [headline(answer.verdict, screen), Text(), measures, Text(), _nearby(answer), Text()]
    return drawn(screen, *blocks, _trainings(answer), Text(), *_facts(answer, screen))


def _or_never(value: float | None) -> str:
    return _NEVER if value is None else decimal(value)


def _ends(measure: TargetMeasure) -> str:
    return f"{decimal(measure.low)} {'or more' if measure.high is None else f'to {decimal(measure.high)}'}"


def _nearby(answer: TargetAnswer) -> RenderableType:
    rows = grid("other target", ">A reach it", ">B reach it", ">A/B", padding=2)
    for one in answer.nearby:
        reached = f"{one.reached_a} of {len(answer.a)}", f"{one.reached_b} of {len(answer.b)}"
        rows.add_row(f"{one.target:.6g}", *reached, "" if one.ratio is None else decimal(one.ratio))
    return rows


def _trainings(answer: TargetAnswer) -> RenderableType:
    rows = grid("", "training", ">steps", ">seconds", ">best", padding=2)
    for side, runs in (("A", answer.a), ("B", answer.b)):
        for run in runs:
            best = f"{run.best:.6g}"
            rows.add_row(
                side,
                printable(run.path),
                _between(run, run.step_before, run.step),
                _between(run, run.seconds_before, run.seconds),
                best,
            )
    return rows


def _between(run: RunToTarget, before: float | None, at: float | None) -> str:
    if not run.reached:
        return _NEVER
    if at is None:
        return ""
    return f"{decimal(before or 0)}–{decimal(at)}"


def _facts(answer: TargetAnswer, screen: Screen) -> Iterator[Text]:
    for name, reason in answer.declined.items():
        yield fact("Lacks", f"{_TITLES[name]}: {reason}", screen)
    word = "loss of at most" if answer.better == "lower" else "score of at least"
    of = f", as the median of {answer.window} evaluations" if answer.window > 1 else ""
    yield fact("Target", f"{word} {answer.target:g}{of}; reached between the evaluations given", screen)
    yield fact("Omits", "trainings are not paired; whether seconds count evaluations depends on the logs", screen)
