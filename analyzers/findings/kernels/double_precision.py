"""ESP708: some modules compute in float64, while others do not."""

from collections.abc import Iterator

from esprof.analyzers.ops.marked_calls import marked_work
from esprof.analyzers.rule import CERTAIN_SHARE, Case, Cause, Page, Rule
from esprof.replay.whatif.gradients.marked_calls import call_ranges, calls_in_float64

_SCENARIO = "double_precision=2x"


def double_precision(case: Case) -> Iterator[Cause]:
    """Modules with parameters, or tables, of 64 bits."""
    work = marked_work(case, _SCENARIO, calls_in_float64, call_ranges)
    if work is None:
        return
    yield Cause(
        id="ESP708",
        title=f"Some modules compute in float64 for {work.takes} of a step, as {work.module}{work.where}",
        ranks=work.ranks,
        scenario=_SCENARIO,
        certain_share=CERTAIN_SHARE,
        confidence="high" if case.is_explained else "medium",
        evidence=work.evidence(),
        advice="Let these modules compute in float32 like the others (`module.float()`), and only sums or losses that need "
        "more digits in float64.",
    )


_PAGES = (
    Page(
        "ESP708",
        "Some modules compute in float64",
        "Modules whose parameters have 64 bits need at least twice the time of those with 32: for arithmetic, and for "
        "memory. On many GPUs they need 32 or 64 times as long, and fast libraries for CPUs do not support them. A single "
        "`.double()` or a NumPy array is enough.",
        "The recorder marks calls of modules with such parameters, if other modules of the window have none, and of those "
        "without parameters whose buffers have 64 bits, such as windows and filter banks. `module` is "
        "the one whose calls take longest, `calls per step and rank` counts all of them, and `per step` is their time with "
        "their backward passes, by rank. `source line` is the line of the job that calls `module`, if samples show it.",
        "`double_precision=2x`: replay lets these modules and their backward passes run twice as fast, except for "
        "operations of less than 20 µs on CPUs. Half of the saving counts as certain. It may be larger.",
        "Use float32, and float64 only for sums that need it.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=double_precision)
