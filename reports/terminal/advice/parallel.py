"""The split of a model over devices, for a terminal."""

from collections.abc import Iterable

from rich.console import RenderableType
from rich.text import Text

from esprof.analyzers.advisors.parallel.advise import ParallelAdvice, TransformerFacts
from esprof.analyzers.advisors.parallel.pricing import ParallelPlan
from esprof.analyzers.advisors.parallel.problem import Recompute
from esprof.core.text import printable
from esprof.reports import units
from esprof.reports.terminal.screen import PLAIN, Screen, drawn, fact, grid, heading, headline

_STAGES_NAMED = 4
"""Most stages of a plan that its row names one by one."""
_STAGES_LISTED = 12
"""Most stages of the best plan that get a row each."""


def draw_parallel(advice: ParallelAdvice, screen: Screen = PLAIN) -> str:
    """The best plans, the stages of the best one, and the bound."""
    best = advice.plans[0]
    title = f"Best plan: layers {_shape(best)} ({best.schedule}), {units.duration(best.step_us)} a step"
    rows = grid("layers on devices", "schedule", ">step", ">above the bound", ">idle", "", padding=2)
    for plan in advice.plans:
        rows.add_row(
            _shape(plan),
            plan.schedule,
            units.duration(plan.step_us),
            units.pct(plan.gap_pct),
            units.pct(plan.idle_pct),
            "; ".join(_remarks(plan)),
        )
    stages = grid("layers", ">number", ">replicas", ">work", ">memory", padding=2)
    for stage in best.stages[:_STAGES_LISTED]:
        stages.add_row(
            printable(stage.first if stage.layers == 1 else f"{stage.first} … {stage.last}"),
            str(stage.layers),
            f"{stage.replicas} × {_devices(best.tensor, stage.device)}",
            units.duration(stage.work_us),
            units.size(stage.memory_bytes),
        )
    if len(best.stages) > _STAGES_LISTED:
        stages.add_row(f"… {len(best.stages) - _STAGES_LISTED} more stages", "", "", "", "")
    blocks: list[RenderableType] = [headline(title, screen), Text(), heading("Best plans"), rows, Text()]
    facts = [*_how_to_run(best, screen), *_facts(advice.facts, screen), *_limits(advice, screen)]
    return drawn(screen, *blocks, heading("Stages of the best plan"), stages, Text(), *facts)


def _shape(plan: ParallelPlan) -> str:
    """The number of layers of each stage and its devices, such as `24 on 3 V100, 16 on 1 P100`."""
    if len(plan.stages) <= _STAGES_NAMED or not plan.rectangular:
        return ", ".join(
            f"{stage.layers} on {stage.replicas} {_devices(plan.tensor, stage.device)}" for stage in plan.stages
        )
    sizes = sorted({stage.layers for stage in plan.stages})
    of = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    kinds = " or ".join(dict.fromkeys(_devices(plan.tensor, stage.device) for stage in plan.stages))
    each = f", {plan.chunks} on each rank" if plan.chunks > 1 else ""
    return f"{of} on {plan.stages[0].replicas} {kinds} in {len(plan.stages)} stages{each}"


def _devices(tensor: int, device: str) -> str:
    """A replica, such as `V100` or `groups of 8 V100`."""
    return printable(device) if tensor == 1 else f"groups of {tensor} {printable(device)}"


def _remarks(plan: ParallelPlan) -> Iterable[str]:
    if plan.recompute is not Recompute.NONE:
        yield f"recompute {plan.recompute}"
    if plan.is_sharded:
        yield "optimizer sharded"
    if not plan.rectangular:
        yield "own process groups"


def _how_to_run(best: ParallelPlan, screen: Screen) -> Iterable[Text]:
    """How torch runs the best plan, and what it sends."""
    if best.torch is not None:
        mesh = ", ".join(f"{name} {size}" for name, size in best.torch.mesh.items())
        schedule = best.torch.schedule or "gradient accumulation"
        yield fact("Mesh", f"{mesh}; {schedule} over {best.microbatches} microbatches", screen)
    kinds = {
        "in a tensor group": best.traffic.tensor_bytes,
        "between stages": best.traffic.pipeline_bytes,
        "of gradients": best.traffic.data_bytes,
    }
    if sent := ", ".join(f"{units.size(size)} {kind}" for kind, size in kinds.items() if size):
        yield fact("Sends", f"{sent}: the busiest device in a step", screen)


def _facts(facts: TransformerFacts | None, screen: Screen) -> Iterable[Text]:
    if facts is None:
        return
    text = f"{facts.parameters / 1e9:,.2f} × 10⁹ parameters; a device reaches {facts.tflops_per_device:.1f} TFLOP/s"
    if facts.training_days is not None:
        text += f"; training takes {facts.training_days:,.1f} days"
    yield fact("Model", text, screen)


def _limits(advice: ParallelAdvice, screen: Screen) -> Iterable[Text]:
    bound = units.duration(advice.lower_bound_us)
    yield fact("Bound", f"{bound}: no plan and no schedule on these devices has a shorter step", screen)
    if advice.one_stage is None:
        yield fact("Unsplit", "the model does not fit on one device", screen)
    else:
        (alone,) = advice.one_stage.stages
        devices = f"{alone.replicas} {_devices(advice.one_stage.tensor, alone.device)}"
        took = units.duration(advice.one_stage.step_us)
        yield fact("Unsplit", f"{took} with data parallelism on {devices}", screen)
    best = advice.plans[0]
    yield fact("Step", f"{best.microbatches} microbatches, {advice.batch} samples", screen)
    if not all(plan.rectangular for plan in advice.plans):
        yield fact("Note", "a DeviceMesh cannot express stages with unlike numbers of replicas", screen)
    for text in advice.warnings:
        yield fact("Note", text, screen)
    yield fact("Omits", "; ".join(advice.not_modelled), screen)
