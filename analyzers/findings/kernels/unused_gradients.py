"""ESP707: a backward pass computes gradients that no optimizer uses."""

from collections.abc import Iterator

import numpy as np

from esprof.analyzers.ops.marked_calls import marked_work
from esprof.analyzers.rule import CERTAIN_SHARE, Case, Cause, Page, Rule
from esprof.core import readable
from esprof.core.types import Rank
from esprof.replay.whatif.gradients.marked_calls import (
    backward_ranges,
    calls_marked,
    calls_with_unused_gradients,
    calls_with_unused_weights,
)
from esprof.run.raw.call_marks import DISCARDED, NOT_HELD, WEIGHTS_NOT_HELD
from esprof.run.schema import Table

_SCENARIO = "unused_gradients=0"


def unused_gradients(case: Case) -> Iterator[Cause]:
    """Backward passes through models or modules that do not learn, or not then."""
    work = marked_work(case, _SCENARIO, _calls, backward_ranges)
    if work is None:
        return
    if _has(case, work.ranks, NOT_HELD, WEIGHTS_NOT_HELD):
        title = f"No optimizer holds the parameters of {work.module} and others in its model; their gradients take "
        title += readable.duration(case.pricer.saving_ns(_SCENARIO) or 0.0)
        advice = _FREEZE
    elif _has(case, work.ranks, DISCARDED):
        title = f"Gradients of {work.module}, which are discarded before its optimizer steps, take {work.takes}"
        advice = _DETACH.format(work.module)
    else:
        title = f"Gradients of {work.module}, which no optimizer changes, take {work.takes}"
        advice = _NO_GRADIENT.format(work.module)
    yield Cause(
        id="ESP707",
        title=f"{title} of a step{work.where}",
        ranks=work.ranks,
        scenario=_SCENARIO,
        certain_share=CERTAIN_SHARE,
        confidence="high" if case.is_explained else "medium",
        evidence=work.evidence(),
        advice=f"{advice} Ignore this finding if the job uses these gradients for something else than an optimizer.",
    )


def _calls(events: Table) -> np.ndarray:
    """Rows of the calls with gradients that no optimizer uses."""
    return np.concatenate([calls_with_unused_gradients(events), calls_with_unused_weights(events)])


def _has(case: Case, ranks: tuple[Rank, ...], *marks: str) -> bool:
    return any(len(calls_marked(case.run.events(rank), *marks)) for rank in ranks)


_DETACH = (
    "Where only another model learns, call {} under `torch.no_grad()`, or `detach()` its output. That also saves the "
    "communication of these gradients under DDP."
)
_NO_GRADIENT = "Call {} under `torch.no_grad()`, or call its `requires_grad_(False)` once."
_FREEZE = (
    "Call `requires_grad_(False)` of all parameters that are not trained, before DDP or FSDP wraps the model: then their "
    "gradients are not communicated either. Or give them to an optimizer, if they were forgotten."
)


_PAGES = (
    Page(
        "ESP707",
        "Gradients that no optimizer uses",
        "A model that does not learn, such as the teacher in a distillation, is called with gradients enabled. Or two "
        "models learn alternately, and one is called with gradients while the other learns, as a generator whose output the "
        "critic gets without `detach()`. Or an optimizer got some parameters of a model only, as adapters or a new last "
        "layer, and the others still require gradients. The backward pass computes gradients of these parameters, which "
        "nothing uses; activations are kept until then.",
        "The recorder knows the parameters that optimizers hold. `module` is a model whose parameters require gradients, "
        "and whose inputs require none. Either no optimizer holds one of its parameters, and they did not change in the "
        "window, or their gradients grew at each step and were never reset, as those of a moving average. Or its gradients "
        "had grown when another optimizer stepped, and were others when its own did: `zero_grad` had discarded them in "
        "between. This is known from the second turn on, and only if `zero_grad` sets gradients to None, as it does by "
        "default. If an optimizer holds some parameters of a model only, the modules without one of them count: with all of "
        "their backward pass if they are called before any that learns, otherwise with half of it. `calls per step and "
        "rank` counts the calls, and `per step` is the time of their backward passes, by rank. `source line` is the line of "
        "the job that makes them, if samples show it.",
        "`unused_gradients=0`: replay removes that backward pass, or the half of it that computes gradients of weights. The "
        "communication of these gradients is not removed. Half of the saving counts as certain.",
        "Use `torch.no_grad()`, `detach()`, or `requires_grad_(False)` for models that do not learn.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=unused_gradients)
