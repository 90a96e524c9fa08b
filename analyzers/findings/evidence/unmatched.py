"""ESP902: collectives without counterpart."""

from collections.abc import Iterator

from esprof.analyzers.evidence import Evidence
from esprof.analyzers.rule import Case, Cause, Page, Rule

MIN_MATCHED_SHARE = 0.9
"""Share of the collective calls that must be matched across ranks."""


def unmatched(case: Case) -> Iterator[Cause]:
    """Calls of collectives that were found on some of their ranks only."""
    counts = case.replayed.built.counts
    seen, matched = counts.collectives, counts.collectives_matched
    if not seen or matched >= MIN_MATCHED_SHARE * seen:
        return
    yield Cause(
        id="ESP902",
        title=f"{seen - matched} of {seen} collective calls could not be matched across ranks",
        ranks=(),
        confidence="high",
        evidence={"collectives": Evidence(seen), "matched": Evidence(matched)},
        advice="Waiting and transfer cannot be told apart in these: give the traces of all ranks of the same steps.",
    )


_PAGES = (
    Page(
        "ESP902",
        "Collectives without counterpart",
        "Calls of a collective were found on some ranks only, so arrival and transfer cannot be told apart in them.",
        "`collectives` seen and `matched`, over all ranks.",
        "None: unmatched calls keep their recorded duration in every replay.",
        "Record the same steps on all ranks.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=unmatched)
