"""ESP706: a model is called again with inputs that it has had in the same step."""

from collections.abc import Iterator

from esprof.analyzers.ops.marked_calls import marked_work
from esprof.analyzers.rule import CERTAIN_SHARE, Case, Cause, Page, Rule
from esprof.replay.whatif.gradients.marked_calls import call_ranges, repeated_calls

_SCENARIO = "repeated_calls=0"


def computed_twice(case: Case) -> Iterator[Cause]:
    """Calls of a model whose result the job has already."""
    work = marked_work(case, _SCENARIO, repeated_calls, call_ranges)
    if work is None:
        return
    yield Cause(
        id="ESP706",
        title=f"{work.module} is called again with the same inputs, which takes {work.takes} of a step{work.where}",
        ranks=work.ranks,
        scenario=_SCENARIO,
        certain_share=CERTAIN_SHARE,
        confidence="high" if case.is_explained else "medium",
        evidence=work.evidence(),
        advice="Call it once, and use its result in all places. Where the result must have no gradient, use "
        "`result.detach()`.",
    )


_PAGES = (
    Page(
        "ESP706",
        "The same is computed twice",
        "A model is called again in the same step with the same inputs, for example to get its outputs one by one. Neither "
        "the inputs nor its weights and buffers have changed in between.",
        "The recorder compares the inputs of the models that are called in a window: the same tensors, unchanged, and equal "
        "other arguments. `module` is the model, `calls per step and rank` counts the calls that were not the first, and "
        "`per step` is their time with their backward pass, by rank. `source line` is the line of the job that makes them, "
        "if samples show it. Calls that draw random numbers, as dropout does, and inputs of unknown types do not count.",
        "`repeated_calls=0`: replay removes these calls with their backward passes. Half of the saving counts as certain.",
        "Keep the result of the first call.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=computed_twice)
