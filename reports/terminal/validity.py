"""The result of `validate` for a terminal."""

from collections.abc import Iterable

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from esprof.analyzers.validity.answer import Part, RankParts, Validation
from esprof.core import readable
from esprof.core.step_words import in_words_of
from esprof.core.text import printable
from esprof.reports import units
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

_ALL = "esprof validate --json"
_SOURCES = {"esprof": "recorded by esprof", "kineto": "from traces of torch.profiler"}


def draw_validation(answer: Validation, screen: Screen = PLAIN) -> str:
    """Whether the run is whole, what it holds, what is broken or missing, and what is declined on it."""
    ranks = units.recorded_ranks(answer.world_size, answer.missing_ranks)
    source = _SOURCES.get(answer.source, f"from {answer.source}")
    losses = [*_losses(answer.ranks)]
    verdict = "is whole" if answer.whole else "is not whole"
    blocks: list[RenderableType] = [headline(f"This run {verdict}: {ranks}, {source}.", screen), ""]
    if answer.faults:
        named = (_line(fault.message) for fault in answer.faults[:MAX_ROWS])
        blocks += [heading("Broken or missing"), *named, *cut_note(len(answer.faults), _ALL), ""]
    blocks += [
        heading("Rows of each table"),
        _parts(answer),
        *cut_note(len(answer.ranks), _ALL),
        *losses[:MAX_ROWS],
        *cut_note(len(losses), _ALL),
        "",
        *_unrecorded(answer),
        *_declined(answer),
        *(fact(name, text, screen) for name, text in _trials(answer)),
        *warned(answer.warnings),
    ]
    return drawn(screen, *blocks)


def _line(text: str) -> Text:
    return Text(printable(text, 2_000))


def _parts(answer: Validation) -> Table:
    """A row for each rank, and a column for each table that any rank has."""
    names = [name for name in answer.ranks[0].parts if any(_is_there(rank, name) for rank in answer.ranks)]
    table = grid(">rank", *(f">{name}" for name in names), ">windows", padding=2)
    for rank in answer.ranks[:MAX_ROWS]:
        windows = ", ".join(f"{one.first}–{one.last}" for one in rank.windows if not one.stacks)
        table.add_row(str(rank.rank), *(_cell(rank.parts[name]) for name in names), windows or units.UNKNOWN)
    return table


def _is_there(rank: RankParts, name: str) -> bool:
    return rank.parts[name].state != "absent"


def _cell(part: Part) -> Text | str:
    if part.state == "broken":
        return Text("broken", style="red")
    if part.state == "absent":
        return units.UNKNOWN
    return units.count(part.rows) if part.rows else "yes"


def _losses(ranks: Iterable[RankParts]) -> Iterable[str]:
    """What limits or the end of a process cost."""
    for rank in ranks:
        lost = [
            *([units.plural(rank.dropped_events, "event") + " dropped"] if rank.dropped_events else []),
            *([units.plural(rank.dropped_steps, "step") + " dropped"] if rank.dropped_steps else []),
            *([units.plural(rank.windows_lost, "window") + " lost"] if rank.windows_lost else []),
            *([] if rank.ended else ["its process did not end normally"]),
        ]
        if lost:
            yield f"rank {rank.rank}: {', '.join(lost)}"


def _unrecorded(answer: Validation) -> Iterable[RenderableType]:
    if not answer.unrecorded:
        return
    yield heading("Not recorded")
    for one in answer.unrecorded:
        yield Text.assemble((one.data, "yellow"), f": needed for {one.needed_for}. {one.remedy}")
    yield ""


def _declined(answer: Validation) -> Iterable[RenderableType]:
    if not answer.declined:
        return
    yield heading(f"What-ifs declined ({len(answer.answered)} others are answered)")
    for one in answer.declined:
        yield Text.assemble((", ".join(one.terms), "yellow"), f": {printable(one.reason, 500)}")
    yield ""


def _trials(answer: Validation) -> Iterable[tuple[str, str]]:
    tried = answer.replay
    if not tried.answered:
        yield "Replay", f"declined, and all what-ifs with it: {tried.reason}"
        return
    steps = readable.numbered(answer.unit, tried.steps)
    error, explained = units.pct(tried.error_pct), units.pct(tried.explained_pct)
    error_of = in_words_of(answer.unit, f"off by {error} on {steps}")
    yield "Replay", f"{error_of}; {explained} of the critical path is explained"
    known = [clock.residual_p99_us for clock in answer.clocks if clock.residual_p99_us is not None]
    if known:
        moved = sum(clock.moved for clock in answer.clocks)
        corrected = f"{units.plural(moved, 'clock')} corrected; " if moved else ""
        yield "Clocks", f"{corrected}ends of collectives differ by at most {units.duration(max(known))} (99 % of them)"
