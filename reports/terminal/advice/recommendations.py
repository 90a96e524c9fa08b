"""All recommendations for one job, and those of the interval of checkpoints, for a terminal."""

from collections.abc import Iterable

from rich.console import RenderableType
from rich.text import Text

from esprof.analyzers.advisors.checkpoint.answer import CheckpointAdvice, MeanTime
from esprof.analyzers.advisors.compression.answer import CompressionAdvice
from esprof.analyzers.advisors.job.batches import BatchAdvice
from esprof.analyzers.advisors.loader.answer import LoaderAdvice
from esprof.analyzers.advisors.recommend import Advice, Recommendations
from esprof.core.text import printable
from esprof.reports import units
from esprof.reports.terminal.advice.compression import draw_compression
from esprof.reports.terminal.advice.loader import draw_loader
from esprof.reports.terminal.advice.placement import draw_batches, draw_ests
from esprof.reports.terminal.screen import PLAIN, Screen, drawn, fact, grid, heading, headline


def draw_recommendations(found: Recommendations, screen: Screen = PLAIN) -> str:
    """Each advice below its name, then why there is no other."""
    drawn_parts = [
        f"{drawn(screen, heading(kind.capitalize()))}\n{draw_advice(advice, screen)}\n"
        for kind, advice in found.advice.items()
    ]
    if found.declined:
        rows = grid("no advice on", "because", padding=2)
        for kind, reason in found.declined.items():
            rows.add_row(kind, printable(reason, 500))
        drawn_parts.append(drawn(screen, rows))
    return "\n".join(drawn_parts)


def draw_advice(advice: Advice, screen: Screen = PLAIN) -> str:
    """Advice of any kind on one job."""
    if isinstance(advice, CheckpointAdvice):
        return draw_checkpoints(advice, screen)
    if isinstance(advice, LoaderAdvice):
        return draw_loader(advice, screen)
    if isinstance(advice, CompressionAdvice):
        return draw_compression(advice, screen)
    return draw_batches(advice, screen) if isinstance(advice, BatchAdvice) else draw_ests(advice, screen)


def draw_checkpoints(advice: CheckpointAdvice, screen: Screen = PLAIN) -> str:
    """The interval, what it costs, and what others would cost."""
    in_all = [">with failures"] if advice.best is not None else []
    rows = grid(">save every", ">costs", "95 % interval", ">mean step", ">a failure loses", *in_all, "", padding=2)
    for one in advice.intervals:
        rows.add_row(
            f"{one.every} steps",
            units.pct(one.overhead_pct),
            f"{one.low_pct:.1f} to {one.high_pct:.1f} %",
            units.duration(one.step_us),
            f"up to {units.duration(one.worst_loss_us)}",
            *([units.pct(one.waste_pct)] if in_all else []),
            _remark(advice, one.every),
        )
    blocks: list[RenderableType] = [headline(checkpoint_title(advice), screen), Text(), rows, Text()]
    return drawn(screen, *blocks, *_facts(advice, screen))


def checkpoint_title(advice: CheckpointAdvice) -> str:
    """The advised interval, and what it costs."""
    found = advice.of(advice.advised)
    keeps = "Keep saving" if advice.plan is None else "Save"
    return f"{keeps} every {found.every} steps: {units.pct(found.overhead_pct)} of the training"


def _remark(advice: CheckpointAdvice, every: int) -> str:
    remarks = {
        "now": advice.measured.every,
        f"shortest within {units.pct(advice.bound_pct)}": advice.shortest_within_bound,
        "loses least": advice.best,
    }
    return ", ".join(text for text, of in remarks.items() if of == every)


def _facts(advice: CheckpointAdvice, screen: Screen) -> Iterable[Text]:
    measured = advice.measured
    yield fact("Saves", f"{measured.count}, by {printable(', '.join(measured.names))}", screen)
    yield fact("Step", f"{units.duration(measured.step_us)} without a save", screen)
    yield fact("A save", f"stops a step for {_mean(measured.stops)}", screen)
    if measured.writes is not None:
        yield fact("Written", f"in the background, in {_mean(measured.writes)}", screen)
    if measured.slows is not None:
        yield fact("Meanwhile", f"a step takes {_mean(measured.slows)} longer", screen)
    if advice.flat is not None:
        low, high = advice.flat
        yield fact("As good", f"{low} to {high} steps: at most 1 % of the run time more than the best", screen)
    if advice.mtbf_us is None:
        yield fact("Failures", "not considered: give --mtbf HOURS", screen)
    for warning in advice.warnings:
        yield fact("Warning", warning, screen)
    yield fact("Omits", "; ".join(advice.not_modelled), screen)


def _mean(time: MeanTime) -> str:
    return f"{units.duration(time.mean_us)} ({units.interval(time.low_us, time.high_us)})"
