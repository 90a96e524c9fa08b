"""ESP707: a backward pass computes gradients of a model that no optimizer changes."""

from collections.abc import Iterator
from functools import partial

from esprof.analyzers.ops.marked_calls import marked_work
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.replay.whatif.gradients.marked_calls import backward_ranges, calls_marked
from esprof.run.raw.call_marks import NOT_OPTIMIZED

CERTAIN_SHARE = 0.5
"""Share of the predicted saving that is certain: every step spends it in the backward pass of a constant model. The error of
`unused_gradients=` itself is not measured."""

_SCENARIO = "unused_gradients=0"


def unused_gradients(case: Case) -> Iterator[Cause]:
    """Backward passes of models that do not learn."""
    work = marked_work(case, _SCENARIO, partial(calls_marked, mark=NOT_OPTIMIZED), backward_ranges)
    if work is None:
        return
    yield Cause(
        id="ESP707",
        title=f"Gradients of {work.module}, which no optimizer changes, take {work.takes} of a step{work.where}",
        ranks=work.ranks,
        scenario=_SCENARIO,
        certain_share=CERTAIN_SHARE,
        confidence="high" if case.is_explained else "medium",
        evidence=work.evidence(),
        advice=f"Call {work.module} under `torch.no_grad()`, or call its `requires_grad_(False)` once. Ignore this finding "
        "if the job uses these gradients for something else than an optimizer.",
    )


_PAGES = (
    Page(
        "ESP707",
        "Gradients that no optimizer uses",
        "A model that does not learn, such as the teacher in a distillation, is called with gradients enabled. The backward "
        "pass goes through it and computes gradients of its parameters, which nothing uses; its activations are kept until "
        "then.",
        "The recorder knows the parameters that optimizers hold. `module` is a model of which no optimizer holds a "
        "parameter, whose parameters require gradients and did not change in the window, and whose inputs require none. "
        "`calls per step and rank` counts its calls, and `per step` is the time of their backward pass, by rank. `source "
        "line` is the line of the job that makes them, if samples show it.",
        "`unused_gradients=0`: replay removes that backward pass. Half of the saving counts as certain.",
        "Use `torch.no_grad()` or `requires_grad_(False)` for models that do not learn.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=unused_gradients)
