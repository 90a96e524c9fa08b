"""ESP902: collectives without counterparts on other ranks."""

from collections.abc import Iterator

from esprof.analyzers.evidence import Evidence
from esprof.analyzers.rule import Case, Cause, Page, Rule

MIN_MATCHED_SHARE = 0.9
"""Share of the collective calls that must be matched across ranks."""


def unmatched(case: Case) -> Iterator[Cause]:
    """Collective calls that were found on only some of their ranks."""
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
        advice="In these calls, waiting cannot be distinguished from communication. Provide the traces of all ranks "
        "for the same steps.",
    )


_PAGES = (
    Page(
        "ESP902",
        "Collectives without counterparts",
        "Collective calls were found on only some ranks, so waiting cannot be distinguished from communication in "
        "them.",
        "`collectives` found and `matched`, over all ranks.",
        "None: unmatched calls retain their recorded duration in every replay.",
        "Record the same steps on all ranks.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=unmatched)
