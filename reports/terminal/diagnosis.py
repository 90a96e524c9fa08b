"""The result of `diagnose` for a terminal, verdict first; and the pages of `explain`."""

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from esprof.analyzers.finding import ACTIVITIES, Diagnosis, Finding, Ignored
from esprof.analyzers.rule import Page
from esprof.core.readable import decimal
from esprof.core.step_words import in_words_of
from esprof.core.text import printable
from esprof.replay.answer import ReplayAnswer
from esprof.reports import units
from esprof.reports.classes import time_class
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
    wrapped,
)

_MAX_FINDINGS_IN_VERDICT = 3
"""Findings in a verdict."""
_MAX_LINES_OF_VERDICT = 20
"""Most lines of a verdict: a screen has 24, and the prompt and the job's last output need some."""
_MAX_LINES_OF_COMMAND = 3
_EACH = {"step": "a step", "block": "a block", "window": "of the window"}
_SEVERITY_STYLES = {"critical": "bold red", "warning": "yellow", "info": "blue"}


def draw_verdict(diagnosis: Diagnosis, screen: Screen = PLAIN) -> str:
    """The diagnosis in at most 20 lines: what is wrong, what it costs, the confidence, and what to do next.

    A finding that does not fit is omitted; its title is not cut.
    """
    foot = [*_footing(diagnosis, screen)]
    if diagnosis.uncertain:
        foot.append(fact("Unsure", "; ".join(map(units.uncertain, diagnosis.uncertain)), screen, at_most=1))
    if diagnosis.ignored:
        foot.append(fact("Ignored", "; ".join(map(units.ignored, diagnosis.ignored)), screen, at_most=1))
    if diagnosis.warnings:
        warnings = units.plural(len(diagnosis.warnings), "warning")
        foot.append(fact("Note", f"{warnings}: see `esprof diagnose RUN`", screen, at_most=1))
    if not diagnosis.findings:
        if diagnosis.replay_error_pct is not None:
            foot.append(fact("Next", "esprof report RUN shows where the time goes", screen))
        return drawn(
            screen, headline(diagnosis.verdict, screen, _MAX_LINES_OF_VERDICT - _height(foot) - 1), Text(), *foot
        )
    first = diagnosis.findings[0]
    foot.append(_next(first, screen))
    room = (
        _MAX_LINES_OF_VERDICT - _height(foot) - 4
    )  # Four are a blank line above and below the findings, and two of advice.
    head = [headline(diagnosis.verdict, screen, room - 2)]
    room -= _height(head)
    head.append(Text())
    for number, finding in enumerate(diagnosis.findings[:_MAX_FINDINGS_IN_VERDICT], 1):
        lines = _finding_lines(number, finding, diagnosis, screen, room - 1 if number == 1 else _MAX_LINES_OF_VERDICT)
        if _height(lines) > room:
            break
        head += lines
        room -= _height(lines)
    return drawn(screen, *head, Text(), fact("Fix", first.advice, screen, at_most=min(room + 2, 4)), *foot)


def _next(first: Finding, screen: Screen) -> Text:
    """The command of the first finding. A long one is not cut, since a part of it is of no use; `diagnose` shows it."""
    whole = fact("Next", first.command or f"esprof explain {first.id}", screen, at_most=None)
    if _height([whole]) <= _MAX_LINES_OF_COMMAND:
        return whole
    return fact("Next", f"esprof diagnose RUN shows the command for {first.id}", screen)


def draw_diagnosis(answer: Diagnosis, screen: Screen = PLAIN) -> str:
    """Every finding with its evidence, then the breakdown of each rank's step."""
    blocks: list[RenderableType] = [headline(answer.verdict, screen), ""]
    for number, finding in enumerate(answer.findings, 1):
        blocks += _finding_lines(number, finding, answer, screen)
        blocks += [*_finding_details(finding), ""]
    if answer.uncertain:
        lines = [Text(printable(units.uncertain(one), 2_000)) for one in answer.uncertain]
        blocks += [heading("May save nothing"), *lines, ""]
    if answer.ignored:
        blocks += [heading("Ignored"), *map(_ignored, answer.ignored), ""]
    if answer.breakdown:
        replayed = "" if answer.replay_error_pct is None else "replayed "
        blocks += [
            heading(in_words_of(answer.unit, f"Breakdown of a {replayed}step, in ms")),
            _breakdown(answer),
            *cut_note(len(answer.breakdown), "esprof diagnose --json"),
            "",
        ]
    blocks += [*_footing(answer, screen), *warned(answer.warnings)]
    return drawn(screen, *blocks)


def draw_pages(found: Sequence[Page], screen: Screen = PLAIN) -> str:
    """One page in full; of several, the names."""
    if len(found) > 1:
        table = grid("id", "finding", "family")
        for page in found:
            table.add_row(page.id, page.title, page.family)
        return drawn(screen, table)
    blocks: list[RenderableType] = []
    for page in found:
        blocks.append(Text.assemble((page.id, "bold"), " ", (page.title, "bold"), (f"  ({page.family})", "dim")))
        for part in ("meaning", "evidence", "saving", "remedy"):
            blocks += ["", heading(part.capitalize()), Padding(getattr(page, part), (0, 0, 0, 2))]
    return drawn(screen, *blocks)


def _footing(answer: Diagnosis, screen: Screen) -> Iterable[Text]:
    """The step time, and the accuracy of replay."""
    rates = ", ".join(units.rates(answer.throughput)) if answer.throughput else units.UNKNOWN
    ranks = units.recorded_ranks(answer.world_size, answer.missing_ranks)
    if answer.replay_error_pct is None and answer.breakdown:
        yield fact(answer.unit.capitalize(), f"{step_time(answer)}, on {ranks}", screen)
        yield fact("Replay", "none: it needs CPU events", screen)
        return
    if answer.replay_error_pct is None:
        yield fact("Step", f"{units.duration(answer.step_us)} on {ranks} (mean of all); {rates}", screen)
        yield fact("Replay", "none: no window could be replayed", screen)
        return
    yield fact(answer.unit.capitalize(), f"{step_time(answer)}, on {ranks}", screen)
    if answer.throughput:
        which = "recorded steps" if answer.unprofiled_step_us is None else "steps without profiler"
        yield fact("Rate", f"{rates} (all {which}, slow ones too)", screen)
    if together := units.joint_saving(answer):
        yield fact("Total", in_words_of(answer.unit, f"all causes together save {together}"), screen)
    error, explained = units.bound_pct(answer.replay_error_pct), units.pct(answer.explained_pct)
    yield fact(
        "Replay",
        in_words_of(answer.unit, f"differs from these steps by at most {error}; ")
        + f"{explained} of the critical path is explained",
        screen,
    )


def step_time(answer: Diagnosis | ReplayAnswer) -> str:
    """Mean step time ± its 95 % interval, of how many steps; and the median step without profiler, if known."""
    scatter = "" if answer.scatter_pct is None else f" ± {units.pct(answer.scatter_pct)}"
    profiled = "profiled " * (answer.unprofiled_step_us is not None)
    steps = units.plural(len(answer.steps), f"{profiled}steady-state step")
    mean = "" if answer.unit == "window" else f" (mean of {in_words_of(answer.unit, steps)})"
    step = f"{units.duration(answer.step_us)}{scatter}{mean}"
    if answer.unprofiled_step_us is None:
        return step
    return f"{step}, {units.duration(answer.unprofiled_step_us)} without profiler (median)"


def _height(lines: Iterable[Text]) -> int:
    return sum(text.plain.count("\n") + 1 for text in lines)


def _finding_lines(
    number: int, finding: Finding, of: Diagnosis, screen: Screen, at_most: int | None = None
) -> list[Text]:
    """The title in at most `at_most` lines, then saving, ranks and confidence in one line."""
    title = f"\n{11 * ' '}".join(wrapped(finding.title, screen.width - 11, at_most))
    worth = [units.ranks(finding.ranks, of.world_size), f"{finding.confidence} confidence"]
    if finding.is_saving:
        saving = f"saves {units.saving(finding)} {_EACH[of.unit]}, {units.pct(finding.saving_pct)}"
        worth.insert(0, saving)
        if not at_most and of.unit == "step":
            worth.append(f"frees {units.rate(finding.saving_device_hours_per_day)} device-hours a day")
    seen = [units.symptom(one) for one in finding.symptoms]
    if at_most and seen:
        seen = [", ".join(one.id for one in finding.symptoms)]
    return [
        Text.assemble(f"{number:>2}  ", (finding.id, _SEVERITY_STYLES[finding.severity]), (f" {title}", "bold")),
        Text("    " + "\n    ".join(wrapped(" · ".join(worth), screen.width - 4, 1 if at_most else None))),
        *(
            Text("    " + "\n      ".join(wrapped(f"Also seen as {one}", screen.width - 6, 1 if at_most else None)))
            for one in seen
        ),
    ]


def _finding_details(finding: Finding) -> Iterable[RenderableType]:
    evidence = grid("", "", header=False)
    for label, text in units.evidence(finding.evidence):
        evidence.add_row(Text(printable(label), style="dim"), printable(text, 300))
    advice = [Text(printable(line, 2_000)) for line in finding.advice.splitlines()]
    then = [Text.assemble(("next  ", "dim"), printable(finding.command, 2_000))] if finding.command else []
    yield Padding(Group(*advice, evidence, *then), (0, 0, 0, 4))


def _ignored(one: Ignored) -> Group:
    details = Text(printable(units.ignored(one), 2_000))
    return Group(Text(printable(one.finding.title, 2_000)), Padding(details, (0, 0, 0, 4)))


def _breakdown(answer: Diagnosis) -> Table:
    narrow = [
        time_class(part).label.replace(" ", "\n").replace("communication", "commu-\nnication") for part in ACTIVITIES
    ]
    table = grid(">rank", f">{answer.unit}", *(f">{label}" for label in narrow), ">over-\nlap", "device")
    for rank in answer.breakdown[:MAX_ROWS]:
        parts = (_bare_ms(getattr(rank, part)) for part in ACTIVITIES)
        overlap = units.UNKNOWN if rank.overlap_pct is None else units.pct(rank.overlap_pct)
        device = printable(rank.device or units.UNKNOWN, 40)
        table.add_row(str(rank.rank), _bare_ms(rank.step_us), *parts, overlap, device)
    return table


def _bare_ms(us: float) -> str:
    return decimal(us / 1_000)
