"""Answers as text for a terminal: the verdict first, then what carries it."""

import io
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from esprof.analyzers.finding import PARTS, Diagnosis, Finding, Ignored
from esprof.analyzers.rule import Page
from esprof.core.readable import decimal
from esprof.core.text import printable
from esprof.core.types import Rank
from esprof.replay.answer import Coverage, ReplayAnswer
from esprof.reports import units
from esprof.reports.classes import time_class
from esprof.run.run import RunWarning

_MAX_FINDINGS_IN_VERDICT = 3
"""Findings in a verdict."""
_MAX_LINES_OF_VERDICT = 20
"""Lines of a verdict at most: a screen has 24, the prompt and the job's last words among them."""
_MAX_ROWS = 16
"""Rows of a table; it says how many more there are, and where."""
_MIN_COLUMNS = 40
"""Columns below which a verdict does not fit its screen."""
_MAX_COLUMNS = 1_000
_WRAPPING_CONSOLE = Console(file=io.StringIO(), markup=False, emoji=False)
"""Wraps text; nothing is ever printed on it."""
_SEVERITY_STYLES = {"critical": "bold red", "warning": "yellow", "info": "blue"}


@dataclass(frozen=True)
class Screen:
    """What a text is drawn for: `width` in columns, and whether colour is wanted."""

    width: int = 100
    colour: bool = False

    @classmethod
    def of(cls, stream: TextIO | None) -> "Screen":
        """`stream` as it is, None being a file: colour only on a terminal, and never under NO_COLOR or on a dumb one."""
        on_terminal = stream is not None and stream.isatty()
        colour = on_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        return cls(_columns(stream), colour)


PLAIN = Screen()


def _columns(stream: TextIO | None) -> int:
    """As COLUMNS asks, on a terminal and elsewhere; without it, as wide as the terminal, but hard to read beyond 120."""
    try:
        asked = int(os.environ.get("COLUMNS", ""))
    except ValueError:
        asked = 0
    if asked > 0:
        return min(max(asked, _MIN_COLUMNS), _MAX_COLUMNS)
    try:
        return min(os.get_terminal_size(stream.fileno()).columns, 120) if stream is not None else PLAIN.width
    except OSError:
        return PLAIN.width


def verdict(diagnosis: Diagnosis, screen: Screen = PLAIN) -> str:
    """The diagnosis in at most 20 lines: what is wrong, what it costs, how sure that is, and what to do next.

    A finding that does not fit is left out, rather than its title cut.
    """
    foot = [*_footing(diagnosis, screen)]
    if diagnosis.ignored:
        foot.append(fact("Ignored", "; ".join(map(units.ignored, diagnosis.ignored)), screen, at_most=1))
    if diagnosis.warnings:
        warnings = units.plural(len(diagnosis.warnings), "warning")
        foot.append(fact("Note", f"{warnings}; `esprof diagnose` shows them", screen, at_most=1))
    if not diagnosis.findings:
        return drawn(
            screen, headline(diagnosis.verdict, screen, _MAX_LINES_OF_VERDICT - _height(foot) - 1), Text(), *foot
        )
    first = diagnosis.findings[0]
    foot.append(fact("Next", first.command or f"esprof explain {first.id}", screen))
    room = (
        _MAX_LINES_OF_VERDICT - _height(foot) - 4
    )  # Four are a blank line above and below the findings, and two of advice.
    head = [headline(diagnosis.verdict, screen, room - 2)]
    room -= _height(head)
    head.append(Text())
    for number, finding in enumerate(diagnosis.findings[:_MAX_FINDINGS_IN_VERDICT], 1):
        lines = _finding_lines(
            number, finding, diagnosis.world_size, screen, room - 1 if number == 1 else _MAX_LINES_OF_VERDICT
        )
        if _height(lines) > room:
            break
        head += lines
        room -= _height(lines)
    return drawn(screen, *head, Text(), fact("Fix", first.advice, screen, at_most=min(room + 2, 4)), *foot)


def diagnosis(answer: Diagnosis, screen: Screen = PLAIN) -> str:
    """Every finding with its evidence, then where each rank's step goes."""
    blocks: list[RenderableType] = [headline(answer.verdict, screen), ""]
    for number, finding in enumerate(answer.findings, 1):
        blocks += _finding_lines(number, finding, answer.world_size, screen)
        blocks += [*_finding_details(finding), ""]
    if answer.ignored:
        blocks += [heading("Ignored"), *map(_ignored, answer.ignored), ""]
    if answer.breakdown:
        blocks += [
            heading("Where a step goes, in ms"),
            _breakdown(answer),
            *_cut(len(answer.breakdown), "esprof diagnose --json"),
            "",
        ]
    blocks += [*_footing(answer, screen), *warned(answer.warnings)]
    return drawn(screen, *blocks)


def replay(answer: ReplayAnswer, screen: Screen = PLAIN) -> str:
    """What each scenario would give, how well the replay reproduces the run, and where its critical path runs."""
    steps = units.plural(len(answer.steps), "steady step")
    ranks = units.recorded_ranks(answer.world_size, answer.coverage.missing_ranks)
    blocks: list[RenderableType] = [
        headline(f"A step takes {_step_time(answer)} on {ranks} (mean of {steps}).", screen),
        "",
    ]
    if answer.what_if:
        of = ", of the step under the profiler" if answer.unprofiled_step_us is not None else ""
        blocks += [heading(f"What if{of}"), _what_ifs(answer), *_unanswered(answer), ""]
    blocks += [
        heading("Steps replayed"),
        _steps(answer),
        *_cut(len(answer.steps), "esprof replay --json"),
        *_left_out(answer),
        "",
        heading(f"Critical path, {units.duration(answer.critical_path.span_us)}"),
        _critical_path(answer),
        "",
        *(fact(name, text, screen) for name, text in _quality(answer)),
        *warned(answer.warnings),
    ]
    return drawn(screen, *blocks)


def pages(found: Sequence[Page], screen: Screen = PLAIN) -> str:
    """The pages of findings in full where it is one, by name where there are more."""
    if len(found) > 1:
        table = grid("id", "finding", "family")
        for page in found:
            table.add_row(page.id, page.title, page.family)
        return drawn(screen, table)
    blocks: list[RenderableType] = []
    for page in found:
        blocks.append(Text.assemble((page.id, "bold"), " ", (page.title, "bold"), (f"  ({page.family})", "dim")))
        for heading in ("meaning", "evidence", "price", "remedy"):
            blocks += ["", Text(heading.capitalize(), style="bold"), Padding(getattr(page, heading), (0, 0, 0, 2))]
    return drawn(screen, *blocks)


def drawn(screen: Screen, *blocks: RenderableType) -> str:
    """`blocks` below each other. Markup, emoji codes and highlighting are off: a name in brackets is a name."""
    console = Console(
        file=io.StringIO(),
        width=screen.width,
        force_terminal=screen.colour,
        color_system="standard" if screen.colour else None,
        markup=False,
        highlight=False,
        emoji=False,
        legacy_windows=False,
    )
    with console.capture() as capture:
        console.print(Group(*blocks))
    # A CI log takes a line that begins with "::" for a command to the runner; wrapping may put a name there.
    return "\n".join(re.sub(r"^(\s*)::", r"\1: :", line.rstrip()) for line in capture.get().splitlines())


def headline(text: str, screen: Screen, at_most: int | None = None) -> Text:
    return Text("\n".join(_wrapped(text, screen.width, at_most)), style="bold")


def heading(text: str) -> Text:
    return Text(text, style="bold")


def fact(name: str, text: str, screen: Screen, at_most: int = 2) -> Text:
    lines = _wrapped(text, screen.width - 8, at_most)
    return Text.assemble((f"{name:<8}", "dim"), "\n        ".join(lines))


def _wrapped(text: str, width: int, at_most: int | None) -> list[str]:
    """`text` in lines of `width` columns (a wide character takes two), at most `at_most`; a longer one ends in `…`."""
    width = max(width, 24)
    lines = Text(printable(" ".join(text.split()), 2_000)).wrap(_WRAPPING_CONSOLE, width)
    shown = [line.plain.rstrip() for line in lines[:at_most]]
    if at_most is not None and len(lines) > at_most:
        shown[-1] = set_cell_size(shown[-1], min(cell_len(shown[-1]), width - 2)).rstrip() + " …"
    return shown


def _footing(answer: Diagnosis, screen: Screen) -> Iterable[Text]:
    """What the figures are of, and how far replay can be trusted with them."""
    rates = ", ".join(units.rates(answer.throughput)) if answer.throughput else units.UNKNOWN
    ranks = units.recorded_ranks(answer.world_size, answer.missing_ranks)
    if answer.replay_error_pct is None:
        yield fact("Step", f"{units.duration(answer.step_us)} on {ranks} (mean of all); {rates}", screen)
        yield fact("Replay", "none: there is no window that could be replayed", screen)
        return
    steps = units.plural(len(answer.steps), "steady step")
    yield fact("Step", f"{_step_time(answer)} on {ranks} (mean of {steps}); {rates}", screen)
    error, explained = units.bound_pct(answer.replay_error_pct), units.pct(answer.explained_pct)
    yield fact("Replay", f"reproduces these steps within {error}; {explained} of the time is explained", screen)


def _step_time(answer: Diagnosis | ReplayAnswer) -> str:
    """Under the profiler, ± what chance makes of the mean; and, where steps without it were seen, what the job's step takes
    when nobody looks."""
    scatter = "" if answer.scatter_pct is None else f" ± {units.pct(answer.scatter_pct)}"
    step = f"{units.duration(answer.step_us)}{scatter}"
    if answer.unprofiled_step_us is None:
        return step
    return f"{step} under the profiler, {units.duration(answer.unprofiled_step_us)} without,"


def _height(lines: Iterable[Text]) -> int:
    return sum(text.plain.count("\n") + 1 for text in lines)


def _finding_lines(
    number: int, finding: Finding, world_size: int, screen: Screen, at_most: int | None = None
) -> list[Text]:
    """What and where, in at most so many lines; and in one line what mending it is worth."""
    title = f"\n{11 * ' '}".join(_wrapped(finding.title, screen.width - 11, at_most))
    worth = [units.ranks(finding.ranks, world_size), f"{finding.confidence} confidence"]
    if finding.is_saving:
        hours = f"{units.rate(finding.saving_device_hours_per_day)} device-h/day"
        worth = [f"saves {units.saving(finding)} a step, {units.pct(finding.saving_pct)}", hours, *worth]
    elif finding.saving_us:
        worth = [f"saving {units.saving(finding)}", *worth]
    return [
        Text.assemble(f"{number:>2}  ", (finding.id, _SEVERITY_STYLES[finding.severity]), (f" {title}", "bold")),
        Text("    " + " ".join(_wrapped(" · ".join(worth), screen.width - 4, at_most=1))),
    ]


def _finding_details(finding: Finding) -> Iterable[RenderableType]:
    evidence = grid("", "", header=False)
    for label, text in (units.evidence(key, value) for key, value in finding.evidence.items()):
        evidence.add_row(Text(printable(label), style="dim"), printable(text, 300))
    advice = [Text(printable(line, 2_000)) for line in finding.advice.splitlines()]
    then = [Text.assemble(("next  ", "dim"), printable(finding.command, 2_000))] if finding.command else []
    yield Padding(Group(*advice, evidence, *then), (0, 0, 0, 4))


def _ignored(one: Ignored) -> Group:
    details = Text(printable(units.ignored(one), 2_000))
    return Group(Text(printable(one.finding.title, 2_000)), Padding(details, (0, 0, 0, 4)))


def _breakdown(answer: Diagnosis) -> Table:
    narrow = [time_class(part).label.replace(" ", "\n").replace("communication", "commu-\nnication") for part in PARTS]
    table = grid(">rank", ">step", *(f">{label}" for label in narrow), ">over-\nlap", "device")
    for rank in answer.breakdown[:_MAX_ROWS]:
        parts = (_bare_ms(getattr(rank, part)) for part in PARTS)
        overlap = units.UNKNOWN if rank.overlap_pct is None else units.pct(rank.overlap_pct)
        device = printable(rank.device or units.UNKNOWN, 40)
        table.add_row(str(rank.rank), _bare_ms(rank.step_us), *parts, overlap, device)
    return table


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
            yield Text.assemble(printable(scenario.spec), (" not answered: ", "yellow"), reason)


def _steps(answer: ReplayAnswer) -> Table:
    table = grid(">step", ">measured", ">replayed", ">error")
    for step in answer.steps[:_MAX_ROWS]:
        replayed, error = units.duration(step.replayed_us), units.error_pct(step.error_pct)
        table.add_row(str(step.step), units.duration(step.measured_us), replayed, error)
    return table


def _left_out(answer: ReplayAnswer) -> Iterable[str]:
    for step in answer.left_out:
        yield f"step {step.step} ({units.duration(step.measured_us)}) left out: {printable(step.reason, 300)}"


def _critical_path(answer: ReplayAnswer) -> Table:
    path = answer.critical_path
    table = grid("class", ">time", ">share", ">rank", ">time", ">share")
    classes = sorted(((us, name) for name, us in path.classes.items() if us > 0), reverse=True)
    left = [(time_class(name).label, units.duration(us), units.pct(100 * us / path.span_us)) for us, name in classes]
    right = [_share(share.rank, share.us, share.pct) for share in path.by_rank[:_MAX_ROWS]]
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
        f"{units.pct(answer.explained_pct)} explained; {units.error_pct(answer.strict_error_pct)} without residuals",
    )
    yield "Unseen", _held_out(answer)
    yield "Matched", f"{_matched(coverage)}; {_waits(coverage)}"
    read, build, replay = (units.duration(1e6 * seconds) for seconds in (timing.read, timing.build, timing.replay))
    graph = f"{units.plural(answer.graph.nodes, 'node')}, {units.plural(answer.graph.edges, 'edge')}"
    yield "Graph", f"{graph}; read {read}, build {build}, replay {replay}"


def _matched(coverage: Coverage) -> str:
    if not coverage.collectives:
        return "no collectives"
    return f"{units.count(coverage.collectives_matched)} of {units.count(coverage.collectives)} collectives"


def _waits(coverage: Coverage) -> str:
    if not coverage.waits:
        return "no waits"
    recorded, inferred = units.count(coverage.waits_recorded), units.count(coverage.waits_inferred)
    return f"of {units.plural(coverage.waits, 'wait')}, {recorded} by record and {inferred} by time alone"


def _held_out(answer: ReplayAnswer) -> str:
    prediction = answer.prediction
    if not prediction.held_out:
        return prediction.reason or "no step was held out"
    errors = [abs(step.error_pct) for step in prediction.held_out]
    return (
        f"{units.plural(len(errors), 'step')} predicted from {units.plural(len(prediction.fit_steps), 'other')}: off by "
        f"{units.pct(sum(errors) / len(errors))} on average, {units.pct(max(errors))} at worst"
    )


def warned(warnings: Sequence[RunWarning]) -> Iterable[Text]:
    for warning in warnings:
        yield Text.assemble(("warning ", "yellow"), f"{printable(warning.code)}: {printable(warning.message, 500)}")


def _cut(number: int, where: str) -> Iterable[str]:
    if number > _MAX_ROWS:
        yield f"{_MAX_ROWS} of {units.count(number)} shown; `{where}` lists all"


def grid(*columns: str, header: bool = True, padding: int = 3) -> Table:
    """A table without rules. A column whose name starts with `>` is right-aligned and never wraps."""
    found = Table(box=None, show_header=header, header_style="dim", pad_edge=False, padding=(0, padding, 0, 0))
    for name in columns:
        right = name.startswith(">")
        found.add_column(name.removeprefix(">"), justify="right" if right else "left", no_wrap=right)
    return found


def _bare_ms(us: float) -> str:
    return decimal(us / 1_000)
