"""What a job log shows, for a terminal."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from esprof.analyzers.jobs.answer import GangAdvice, JobsAnswer, JobShare
from esprof.core.readable import decimal
from esprof.reports import units
from esprof.reports.terminal.screen import PLAIN, Screen, drawn, fact, grid, headline

_PARTS = {
    "queueing": "queueing",
    "locality": "queueing by servers",
    "states": "final states",
    "gpu_time": "GPU time",
    "retries": "GPU time of retries",
    "gang_size": "advice on --size",
}


def draw_jobs(answer: JobsAnswer, screen: Screen = PLAIN) -> str:
    """The advice first if there is one, then waits, shares, and what the log lacks."""
    title = (
        f"{answer.format}: {answer.gpu_jobs:,} jobs with GPUs in {decimal(answer.days)} days, "
        f"{decimal(answer.gpu_hours)} GPU hours"
    )
    blocks: list[RenderableType] = [headline(title, screen)]
    if answer.advice is not None:
        blocks += [Text(), *_sizes(answer.advice, screen)]
    for table in (_waits(answer), _shares("GPUs", answer.gangs), _shares("final state", answer.states)):
        if table.row_count:
            blocks += [Text(), table]
    return drawn(screen, *blocks, Text(), *_facts(answer, screen))


def _sizes(advice: GangAdvice, screen: Screen) -> Iterator[RenderableType]:
    yield fact("Ask for", f"{advice.gpus} GPUs" if advice.gpus is not None else "undecided", screen)
    yield fact("Why", advice.reason, screen)
    rows = grid(
        ">GPUs", ">training", "waits of", ">mean wait", ">completion", "95 % interval", ">fastest in", padding=2
    )
    for one in advice.sizes:
        rows.add_row(
            str(one.gpus),
            f"{decimal(one.run_h)} h",
            one.waits_of,
            f"{decimal(one.wait_h)} h",
            f"{decimal(one.completion_h)} h",
            f"{decimal(one.low_h)} to {decimal(one.high_h)} h",
            units.pct(100 * one.shortest_share),
        )
    yield rows


def _waits(answer: JobsAnswer) -> Table:
    rows = grid("GPUs", "servers", ">attempts", ">mean wait", ">median", ">90 %", padding=2)
    of_any = {waits.gang: waits for waits in answer.queueing}
    for gang, whole in of_any.items():
        by_servers = [waits for waits in answer.locality if waits.gang == gang]
        for waits in (whole, *(by_servers if len(by_servers) > 1 else ())):
            rows.add_row(
                gang if waits is whole else "",
                waits.servers or "any",
                f"{waits.attempts:,}",
                *(f"{decimal(seconds)} s" for seconds in (waits.mean_s, waits.median_s, waits.p90_s)),
            )
    return rows


def _shares(title: str, shares: Sequence[JobShare]) -> Table:
    rows = grid(title, ">jobs", ">of jobs", ">of GPU time", padding=2)
    for one in shares:
        rows.add_row(one.of, f"{one.jobs:,}", units.pct(100 * one.jobs_share), _pct(one.gpu_time_share))
    return rows


def _pct(share: float | None) -> str:
    return units.pct(None if share is None else 100 * share)


def _facts(answer: JobsAnswer, screen: Screen) -> Iterator[Text]:
    if answer.mean_wait_s is not None and answer.median_wait_s is not None:
        yield fact("Waits", f"mean {decimal(answer.mean_wait_s)} s, median {decimal(answer.median_wait_s)} s", screen)
    if answer.retries is not None:
        share = _pct(answer.retries.gpu_time_share)
        yield fact("Retries", f"{share} of GPU time went into {answer.retries.attempts:,} earlier attempts", screen)
    for part, reason in answer.declined.items():
        yield fact("Lacks", f"{_PARTS[part]}: {reason}", screen)
    for note in answer.notes:
        yield fact("Note", note, screen)
