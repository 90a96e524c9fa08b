"""ESP706: a model, or a part of it, is called again with inputs that it has had in the same step."""

from collections.abc import Iterator

from esprof.analyzers.ops.marked_calls import marked_work
from esprof.analyzers.rule import CERTAIN_SHARE, Case, Cause, Page, Rule
from esprof.replay.whatif.gradients.marked_calls import ranges_of_repeated, repeated_calls

_SCENARIO = "repeated_calls=0"


def computed_twice(case: Case) -> Iterator[Cause]:
    """Calls of modules whose results the job has already."""
    work = marked_work(case, _SCENARIO, repeated_calls, ranges_of_repeated)
    if work is None:
        return
    yield Cause(
        id="ESP706",
        title=f"{work.modules} called again with the same inputs, which takes {work.takes} of a step{work.where}",
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
        "A model, or a part of it, is called again in the same step with the same inputs: its outputs are fetched one by "
        "one, or an encoder runs for each head. Neither the inputs nor its weights and buffers have changed in between.",
        "The recorder compares the inputs of calls in a window: the same tensors, unchanged, equal views of them, and equal "
        "other arguments. Results of equal calls are equal inputs of the next module; those of operations between modules "
        "are not. Parts of models are compared for one whole step, and as long as they are called again. `module` is the "
        "one whose calls take longest, `calls per step and rank` counts the calls that were not the first, and `per step` "
        "is their time with their backward pass, by rank. `source line` is the line of the job that makes them and not the "
        "first ones, if samples show it. Calls that draw random numbers, as dropout does, and inputs of "
        "unknown types do not count.",
        "`repeated_calls=0`: replay removes these calls with their backward passes. If the calls before had no gradients, "
        "the backward pass stays. Half of the saving counts as certain.",
        "Keep the result of the first call.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=computed_twice)
