"""ESP903: ranks that are not in the run."""

from collections.abc import Iterator

from esprof.analyzers.evidence import Evidence
from esprof.analyzers.rule import Case, Cause, Page, Rule


def missing_ranks(case: Case) -> Iterator[Cause]:
    """The job had more ranks than the run holds."""
    run = case.run
    missing = tuple(sorted(set(range(run.world_size)) - set(run.ranks)))
    if not missing:
        return
    yield Cause(
        id="ESP903",
        title=f"{len(missing)} of {run.world_size} ranks {'is' if len(missing) == 1 else 'are'} missing",
        ranks=missing,
        confidence="high",
        evidence={"missing": Evidence(missing, "ranks"), "step": Evidence(round(case.pricer.step_ns), "ns")},
        advice="A straggler among them cannot be seen: record all ranks.",
    )


_PAGES = (
    Page(
        "ESP903",
        "Ranks are missing",
        "The job had more ranks than this run holds.",
        "`missing` lists them.",
        "None: what a missing rank does to the others is seen only as their waiting.",
        "Record all ranks, or add their files.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=missing_ranks)
