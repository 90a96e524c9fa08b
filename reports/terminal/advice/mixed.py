"""Pipelines that mix types of devices, for a terminal."""

from collections.abc import Iterable, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from esprof.analyzers.advisors.parallel.mixed.advise import MixedAdvice, MixedStageCost, PredictedPlan, PricedMixedPlan
from esprof.core.text import printable
from esprof.reports import units
from esprof.reports.terminal.screen import PLAIN, Screen, drawn, fact, grid, heading, headline


def draw_mixed(advice: MixedAdvice, screen: Screen = PLAIN) -> str:
    """The best plans, the stages of the best one, and the given plans."""
    blocks: list[RenderableType] = []
    if advice.plans:
        best = advice.plans[0]
        blocks += [headline(f"Best plan: {_stages(best)}, {units.duration(best.step_us)} a step", screen), Text()]
        blocks += [heading("Best plans"), _plans(advice.plans), Text()]
        blocks += [heading("Stages of the best plan"), _costs(best), Text()]
    if advice.given:
        blocks += [heading("Given plans"), _given(advice.given), Text()]
    return drawn(screen, *blocks, *_facts(advice, screen))


def _plans(plans: Sequence[PricedMixedPlan]) -> Table:
    rows = grid("layers on devices", ">pipelines", ">microbatch", ">step", padding=2)
    for one in plans:
        rows.add_row(_stages(one), str(one.pipelines), str(one.plan.microbatch), units.duration(one.step_us))
    return rows


def _costs(plan: PricedMixedPlan) -> Table:
    rows = grid("layers", "replicas", ">work", ">transfer", ">all-reduce", ">memory", padding=2)
    for stage in plan.stages:
        rows.add_row(
            str(stage.first) if stage.end == stage.first + 1 else f"{stage.first} … {stage.end - 1}",
            _groups(stage),
            units.duration(stage.work_us),
            units.duration(stage.receive_us),
            units.duration(stage.reduce_us),
            units.size(max(group.memory_bytes for group in stage.groups)),
        )
    return rows


def _given(plans: Sequence[PredictedPlan]) -> Table:
    rows = grid("plan", ">step", ">measured", ">error", "", padding=2)
    for one in plans:
        rows.add_row(
            printable(one.name),
            units.duration(one.priced.step_us),
            "" if one.measured_us is None else units.duration(one.measured_us),
            "" if one.error_pct is None else units.pct(one.error_pct),
            "" if one.priced.fits else "too little memory",
        )
    return rows


def _facts(advice: MixedAdvice, screen: Screen) -> Iterable[Text]:
    bound = units.duration(advice.lower_bound_us)
    yield fact("Bound", f"{bound}: no plan with one tensor degree for each type has a shorter step", screen)
    yield fact("Step", f"{advice.batch} samples of {printable(advice.model)}, schedule 1f1b", screen)
    for text in advice.warnings:
        yield fact("Note", printable(text), screen)
    yield fact("Omits", "; ".join(advice.not_modelled), screen)


def _stages(plan: PricedMixedPlan) -> str:
    """The number of layers of each stage and its replicas, such as `12 on 2 × 8 V100, 14 on 2 × 4 A100`."""
    return ", ".join(f"{stage.end - stage.first} on {_groups(stage)}" for stage in plan.stages)


def _groups(stage: MixedStageCost) -> str:
    return " + ".join(f"{group.replicas} × {group.tensor} {printable(group.device)}" for group in stage.groups)
