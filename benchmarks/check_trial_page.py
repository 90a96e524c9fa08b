"""The figures that `benchmarks.check_trial` printed, as the table of docs/results/check.md.

python -m benchmarks.check_trial_page FIGURES [PAGE]
"""

import json
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import table
from benchmarks.sections import write_sections

TRIAL = (
    "job",
    "change",
    "rule",
    ">pairs",
    ">fails %",
    ">disjoint",
    ">by median, mean",
    ">inconclusive",
    ">of that, waited",
    ">passes",
)

CHANGES = {
    "none": "none",
    "work+3%": "+3 % in every step",
    "work+5%": "+5 % in every step",
    "work+10%": "+10 % in every step",
    "work+20%": "+20 % in every step",
    "periodic": "periodic",
    "drift": "drift",
    "hiccup": "one hiccup",
}


STRETCHES = {
    "none": "stretches, none",
    "turns+3%": "stretches, +3 %",
    "turns+5%": "stretches, +5 %",
    "turns+10%": "stretches, +10 %",
    "turns+20%": "stretches, +20 %",
}


def main() -> None:
    figures, page = Path(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else "docs/results/check.md")
    write_sections(page, {"trial": section(figures)})


def section(file: Path) -> str:
    """The table of the JSON lines in `file`, with the conditions of the trial below it."""
    figures = [json.loads(line) for line in file.read_text().splitlines()]
    waits = [f"{figure['value']:.0f} %" for figure in figures if figure["name"] == "check_trial_cpu_wait"]
    cpu_apart = [f"{figure['value']:.0f} %" for figure in figures if figure["name"] == "check_trial_cpu_apart"]
    groups = [figure for figure in figures if figure["name"].startswith("check_trial_failed")]
    same = {figure["context"]["job"]: figure["context"] for figure in groups if _is_same(figure["context"])}
    apart = [f"{low:+.0f} … {high:+.0f} %" for low, _, high in (of["change_pct"]["mean"] for of in same.values())]
    hidden = sum(figure["context"]["hidden"] for figure in groups)
    answers = sum(figure["context"]["pairs"] for figure in groups if figure["context"]["which"] != "disjoint")
    conditions = (
        f"In the median run, a rank waited for a CPU in {' and '.join(waits)} of its steps (one process, two). Between runs "
        f"of the same code the mean step changed by {' and '.join(apart)} (5th to 95th percentile). One run in ten changed "
        f"its CPU time by more than {' and '.join(cpu_apart)}."
    )
    unexplained = (
        f"Of {answers} answers {hidden} had a mean beyond the limit at 99 % and neither failed nor gave a reason."
    )
    paragraphs = (textwrap.fill(text, 120, break_on_hyphens=False) for text in (conditions, unexplained))
    return "\n\n".join([table(TRIAL, trial_rows(groups)), *paragraphs])


def trial_rows(groups: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """A row for each job, change and rule, with the failures among the disjoint pairs."""
    disjoint = {_case(figure): figure["context"] for figure in groups if figure["context"]["which"] == "disjoint"}
    for figure in groups:
        of = figure["context"]
        if of["which"] == "disjoint":
            continue
        is_within = figure["name"] == "check_trial_failed_within"
        apart = None if is_within else disjoint.get(_case(figure))
        low, high = of["interval_pct"]
        yield (
            of["job"],
            STRETCHES[of["kind"]] if is_within else CHANGES[of["kind"]],
            f"`{of['rule']}`",
            str(of["pairs"]),
            f"{figure['value']:.1f} ({low:.1f} … {high:.1f})",
            f"{apart['regressed']} of {apart['pairs']}" if apart else "",
            ", ".join(str(of["regressed_by"][name]) for name in ("median", "mean")),
            str(of["inconclusive"]),
            str(of["only_waited_for_a_cpu"]),
            str(of["unchanged"]),
        )


def _is_same(of: dict[str, Any]) -> bool:
    return of["kind"] == "none" and of["which"] == "all"


def _case(figure: dict[str, Any]) -> tuple[str, str, str]:
    of = figure["context"]
    return of["job"], of["kind"], of["rule"]


if __name__ == "__main__":
    main()
