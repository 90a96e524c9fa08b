"""Answers on several jobs in whole devices, servers, slices and hours, for a terminal."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from esprof.analyzers.advisors.cluster.questions.answer import ClusterAnswer
from esprof.analyzers.advisors.cluster.questions.giving_back import ReclaimAnswer
from esprof.analyzers.advisors.cluster.questions.proposals import ProposalsAnswer
from esprof.analyzers.advisors.cluster.questions.sizes import SizesAnswer
from esprof.analyzers.advisors.cluster.questions.slices import SlicesAnswer
from esprof.analyzers.advisors.cluster.questions.spot import SpotAnswer
from esprof.core.readable import decimal
from esprof.core.text import printable
from esprof.reports.terminal.screen import PLAIN, Screen, drawn, fact, grid, headline

_MAX_ROWS = 40
"""Rows of a table; the JSON has all."""


def draw_cluster(answer: ClusterAnswer, screen: Screen = PLAIN) -> str:
    """The value, the decision, then what it is compared with."""
    title = f"{_number(answer.value)} {answer.unit}"
    return drawn(screen, headline(title, screen), Text(), *_decision(answer), Text(), *_facts(answer, screen))


def _facts(answer: ClusterAnswer, screen: Screen) -> Iterator[Text]:
    for name, value in answer.baselines.items():
        yield fact("Other", f"{_number(value)} {answer.unit}: {printable(name)}", screen)
    yield fact("Bound", f"no decision has a better value than {_number(answer.bound)}", screen)
    for warning in answer.warnings:
        yield fact("Note", printable(warning), screen)
    yield fact("Omits", "; ".join(answer.not_modelled), screen)


def _number(value: float) -> str:
    return f"{int(value):,}" if value.is_integer() else decimal(value)


def _decision(answer: ClusterAnswer) -> Iterator[RenderableType]:
    if isinstance(answer, SizesAnswer):
        yield from _sizes(answer)
    elif isinstance(answer, ReclaimAnswer):
        yield from _reclaim(answer)
    elif isinstance(answer, SlicesAnswer):
        yield from _slices(answer)
    elif isinstance(answer, SpotAnswer):
        yield from _offers(answer)
    elif isinstance(answer, ProposalsAnswer):
        yield from _proposals(answer)


def _sizes(answer: SizesAnswer) -> Iterator[RenderableType]:
    rows = grid("job", ">devices", ">remaining", padding=2)
    for one in answer.decision[:_MAX_ROWS]:
        left = "waits" if one.seconds is None else f"{decimal(one.seconds)} s"
        rows.add_row(printable(one.job, 24), str(one.devices), left)
    yield rows
    yield from _more(len(answer.decision), "jobs")


def _reclaim(answer: ReclaimAnswer) -> Iterator[RenderableType]:
    rows = grid("give back", "jobs that stop", "before that", padding=2)
    jobs = {server.name: server.jobs for server in answer.problem.servers}
    for name in answer.decision.servers[:_MAX_ROWS]:
        stopped = sorted(map(str, jobs[name]))
        saves = [f"save {printable(job, 24)}" for job in stopped if job in answer.decision.saving]
        rows.add_row(
            printable(name, 32),
            ", ".join(printable(job, 24) for job in stopped) or "none",
            ", ".join(saves) or "nothing",
        )
    yield rows
    yield from _more(len(answer.decision.servers), "servers")


def _slices(answer: SlicesAnswer) -> Iterator[RenderableType]:
    cut = grid(">devices", "type", "each cut into", padding=2)
    for device in answer.decision.devices[:_MAX_ROWS]:
        cut.add_row(str(device.count), printable(device.device, 24), _counted(device.slices))
    yield cut
    yield from _more(len(answer.decision.devices), "kinds of cuts")
    yield Text()
    rows = grid("job", "gets", ">serves /s", ">of", padding=2)
    demands = {job.name: job.demand_per_s for job in answer.problem.jobs}
    for one in answer.decision.jobs[:_MAX_ROWS]:
        serves = decimal(one.throughput_per_s), decimal(demands[one.job])
        rows.add_row(printable(one.job, 24), _counted(one.slices), *serves)
    yield rows
    yield from _more(len(answer.decision.jobs), "jobs")


def _offers(answer: SpotAnswer) -> Iterator[RenderableType]:
    rows = grid("hours", "offer, if none is interrupted", padding=2)
    stretches = answer.decision.uninterrupted
    for one in stretches[:_MAX_ROWS]:
        offer = printable(one.offer, 32) if one.offer is not None else "wait"
        rows.add_row(f"{decimal(one.from_h)}–{decimal(one.until_h)}", offer)
    yield rows
    yield from _more(len(stretches), "changes")


def _proposals(answer: ProposalsAnswer) -> Iterator[RenderableType]:
    rows = grid("job", "has", "gets", ">ESTs/s", ">times now", padding=2)
    held = {job.name: job.held for job in answer.problem.jobs}
    for one in answer.decision[:_MAX_ROWS]:
        speedup = decimal(one.speedup) if one.speedup is not None else ""
        devices = _counted(held[one.job]) or "nothing", _counted(one.devices) or "nothing"
        rows.add_row(printable(one.job, 24), *devices, decimal(one.ests_per_s), speedup)
    yield rows
    yield from _more(len(answer.decision), "jobs")


def _counted(names: dict[str, int]) -> str:
    return ", ".join(f"{count} {printable(name, 32)}" for name, count in names.items())


def _more(count: int, what: str) -> Iterator[Text]:
    if count > _MAX_ROWS:
        yield Text(f"and {count - _MAX_ROWS:,} more {what} (--json)")
