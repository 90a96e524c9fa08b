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
        "one, or an encoder runs for each head.",
        "The recorder compares the calls of a module in a step. Two of them are equal if they have the same tensors, "
        "unchanged, or equal views of them, equal other arguments, and the same autocast, and if no change of the module "
        "has been seen in between: of weights, buffers and attributes. What a module returns for equal inputs counts as "
        "equal, so that the next module is compared, too; what operations outside of modules compute from it does not. "
        "Calls that draw random numbers from PyTorch's default generators are left out, as with dropout, and so are inputs "
        "of unknown types. Modules are compared in the first whole step of a window, and in later ones as long as each "
        "step repeats a call. `module` is the one whose calls take longest, `calls per step and rank` counts the calls "
        "that were not the first, and `per step` is their time with their backward pass, by rank. `source line` is the "
        "line of the job that makes them and not the first ones, if samples show it. State outside of modules that "
        "changes a result is not seen.",
        "`repeated_calls=0`: replay removes these calls. It removes their backward passes if the first call has one as "
        "well. Half of the saving counts as certain.",
        "Call it once, with gradients if they are needed anywhere, and use its result in all places.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=computed_twice)
