"""ESP707: a backward pass computes gradients that no optimizer uses."""

from collections.abc import Iterator

from esprof.analyzers.ops.marked_calls import marked_work
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.replay.whatif.gradients.marked_calls import backward_ranges, calls_marked, calls_with_unused_gradients
from esprof.run.raw.call_marks import DISCARDED

CERTAIN_SHARE = 0.5
"""Share of the predicted saving that is certain: every step spends it in a backward pass without use. The error of
`unused_gradients=` itself is not measured."""

_SCENARIO = "unused_gradients=0"


def unused_gradients(case: Case) -> Iterator[Cause]:
    """Backward passes through models that do not learn, or not then."""
    work = marked_work(case, _SCENARIO, calls_with_unused_gradients, backward_ranges)
    if work is None:
        return
    is_discarded = any(len(calls_marked(case.run.events(rank), DISCARDED)) for rank in work.ranks)
    how = "are discarded before its optimizer steps" if is_discarded else "no optimizer changes"
    yield Cause(
        id="ESP707",
        title=f"Gradients of {work.module}, which {how}, take {work.takes} of a step{work.where}",
        ranks=work.ranks,
        scenario=_SCENARIO,
        certain_share=CERTAIN_SHARE,
        confidence="high" if case.is_explained else "medium",
        evidence=work.evidence(),
        advice=_advice(work.module, is_discarded=is_discarded),
    )


def _advice(module: str, *, is_discarded: bool) -> str:
    if is_discarded:
        how = (
            f"Where only another model learns, call {module} under `torch.no_grad()`, or `detach()` its output. That also "
            "saves the communication of these gradients under DDP."
        )
    else:
        how = f"Call {module} under `torch.no_grad()`, or call its `requires_grad_(False)` once."
    return f"{how} Ignore this finding if the job uses these gradients for something else than an optimizer."


_PAGES = (
    Page(
        "ESP707",
        "Gradients that no optimizer uses",
        "A model that does not learn, such as the teacher in a distillation, is called with gradients enabled. Or two "
        "models learn alternately, and one is called with gradients while the other learns, as a generator whose output the "
        "critic gets without `detach()`. The backward pass goes through it and computes gradients of its parameters, which "
        "nothing uses; its activations are kept until then.",
        "The recorder knows the parameters that optimizers hold. `module` is a model whose parameters require gradients, "
        "and whose inputs require none. Either no optimizer holds one of its parameters, and they did not change in the "
        "window. Or its gradients had grown when another optimizer stepped, and were others when its own did: `zero_grad` "
        "had discarded them in between. This is known from the second turn on, and only if `zero_grad` sets gradients to "
        "None, as it does by default. `calls per step and rank` counts its calls, and `per step` is the time of their "
        "backward pass, by rank. `source line` is the line of the job that makes them, if samples show it.",
        "`unused_gradients=0`: replay removes that backward pass. Half of the saving counts as certain.",
        "Use `torch.no_grad()`, `detach()`, or `requires_grad_(False)` for models that do not learn.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=unused_gradients)
