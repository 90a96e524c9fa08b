"""The result of `replay` for a terminal."""

from collections.abc import Iterable

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from esprof.core.step_words import in_words_of
from esprof.core.text import printable
from esprof.core.types import Rank
from esprof.replay.answer import Coverage, ReplayAnswer
from esprof.replay.whatif.memory.peak import parts_of
from esprof.reports import units
from esprof.reports.classes import time_class
from esprof.reports.terminal.diagnosis import step_time
from esprof.reports.terminal.screen import (
    MAX_ROWS,
    PLAIN,
    Screen,
    cut_note,
    drawn,
    fact,
    grid,
    heading,
    headline,
    warned,
)

_ALL = "esprof replay --json"


def draw_replay(answer: ReplayAnswer, screen: Screen = PLAIN) -> str:
    """The predictions of the scenarios, the accuracy of replay on this run, and its critical path."""
    ranks = units.recorded_ranks(answer.world_size, answer.coverage.missing_ranks)
    blocks: list[RenderableType] = [
        headline(in_words_of(answer.unit, f"A step takes {step_time(answer)}, on {ranks}."), screen),
        "",
    ]
    if answer.what_if:
        of = in_words_of(
            answer.unit, "a step under the profiler" if answer.unprofiled_step_us is not None else "a step"
        )
        blocks += [heading(f"Predictions for {of}"), _what_ifs(answer), *_unanswered(answer), *_peaks(answer), ""]
    if answer.memory:
        blocks += [heading("Peak memory of tensors"), _memory(answer), *cut_note(len(answer.memory), _ALL), ""]
    blocks += [
        heading(f"{answer.unit.capitalize()}s replayed"),
        _steps(answer),
        *cut_note(len(answer.steps), _ALL),
        *_left_out(answer),
        "",
        heading(f"Critical path, {units.duration(answer.critical_path.span_us)}"),
        _critical_path(answer),
        "",
        *(fact(name, text, screen) for name, text in _quality(answer)),
        *warned(answer.warnings),
    ]
    return drawn(screen, *blocks)


def _what_ifs(answer: ReplayAnswer) -> Table:
    table = grid("scenario", ">predicted", ">speed-up", ">saves", ">interval", "note")
    for scenario in answer.what_if:
        if scenario.answered:
            predicted, speedup = units.duration(scenario.predicted_us), units.times(scenario.speedup)
            saves, note = units.duration(scenario.saving_us), printable(scenario.note or "", 300)
            interval = units.interval(scenario.saving_low_us, scenario.saving_high_us)
            table.add_row(printable(scenario.spec), predicted, speedup, saves, interval, note)
    return table


def _unanswered(answer: ReplayAnswer) -> Iterable[Text]:
    for scenario in answer.what_if:
        if not scenario.answered:
            reason = printable(scenario.reason or "no reason given", 500)
            yield Text.assemble(printable(scenario.spec), (" not predicted: ", "yellow"), reason)


def _peaks(answer: ReplayAnswer) -> Iterable[Text]:
    for scenario in answer.what_if:
        if scenario.peak is not None:
            text = f"{units.peak(scenario.peak)} on rank {scenario.peak.rank}"
            yield Text.assemble(printable(scenario.spec), " peak memory: ", text)
        elif scenario.peak_reason is not None:
            reason = printable(scenario.peak_reason, 500)
            yield Text.assemble(printable(scenario.spec), (" peak memory unknown: ", "yellow"), reason)


def _memory(answer: ReplayAnswer) -> Table:
    shown = parts_of(answer.memory)
    table = grid(">rank", ">peak", *(f">{part}" for part in shown), ">limit")
    for one in answer.memory[:MAX_ROWS]:
        sizes = [units.size(getattr(one, part)) for part in ("peak", *shown, "limit")]
        table.add_row(str(one.rank), *sizes)
    return table


def _steps(answer: ReplayAnswer) -> Table:
    table = grid(f">{answer.unit}", ">measured", ">replayed", ">error")
    for step in answer.steps[:MAX_ROWS]:
        replayed, error = units.duration(step.replayed_us), units.error_pct(step.error_pct)
        table.add_row(str(step.step), units.duration(step.measured_us), replayed, error)
    return table


def _left_out(answer: ReplayAnswer) -> Iterable[str]:
    for step in answer.left_out:
        yield f"{answer.unit} {step.step} ({units.duration(step.measured_us)}) skipped: {printable(step.reason, 300)}"


def _critical_path(answer: ReplayAnswer) -> Table:
    path = answer.critical_path
    table = grid("class", ">time", ">share", ">rank", ">time", ">share")
    classes = sorted(((us, name) for name, us in path.classes.items() if us > 0), reverse=True)
    left = [(time_class(name).label, units.duration(us), units.pct(100 * us / path.span_us)) for us, name in classes]
    right = [_share(share.rank, share.us, share.pct) for share in path.by_rank[:MAX_ROWS]]
    blank = ("", "", "")
    for row in range(max(len(left), len(right))):
        table.add_row(*(left[row] if row < len(left) else blank), *(right[row] if row < len(right) else blank))
    return table


def _share(rank: Rank, us: float, pct: float) -> tuple[str, str, str]:
    return str(rank), units.duration(us), units.pct(pct)


def _quality(answer: ReplayAnswer) -> Iterable[tuple[str, str]]:
    coverage, timing = answer.coverage, answer.timing_s
    yield (
        "Replay",
        f"{units.pct(answer.explained_pct)} explained; error without residuals (unexplained time): "
        f"{units.error_pct(answer.strict_error_pct)}",
    )
    yield "Test", in_words_of(answer.unit, _held_out(answer))
    yield "Matched", f"{_matched(coverage)}; {_waits(coverage)}"
    read, build, replay = (units.duration(1e6 * seconds) for seconds in (timing.read, timing.build, timing.replay))
    graph = f"{units.plural(answer.graph.nodes, 'node')}, {units.plural(answer.graph.edges, 'edge')}"
    yield "Graph", f"{graph}; read {read}, build {build}, replay {replay}"


def _matched(coverage: Coverage) -> str:
    counted = (
        (coverage.collectives_matched, coverage.collectives, "collectives"),
        (coverage.p2p_matched, coverage.p2p, "sends and receives"),
    )
    found = [f"{units.count(matched)} of {units.count(seen)} {what}" for matched, seen, what in counted if seen]
    return ", ".join(found) or "no collectives"


def _waits(coverage: Coverage) -> str:
    if not coverage.waits:
        return "no waits"
    recorded, inferred = units.count(coverage.waits_recorded), units.count(coverage.waits_inferred)
    return f"{units.plural(coverage.waits, 'wait')}: cause of {recorded} recorded, of {inferred} inferred from timing"


def _held_out(answer: ReplayAnswer) -> str:
    prediction = answer.prediction
    if prediction.mean_error_pct is None:
        return f"no held-out test: {prediction.reason or 'no step was held out'}"
    return (
        f"held-out test: durations of {units.plural(len(prediction.fit_steps), 'step')} predict "
        f"{units.plural(len(prediction.held_out), 'other step')} with an error of "
        f"{units.pct(prediction.mean_error_pct)} on average, "
        f"{units.pct(max(abs(step.error_pct) for step in prediction.held_out))} at worst"
    )
