"""ESP903: ranks that are not in the run."""

from collections.abc import Iterator

from esprof.analyzers.evidence import Evidence
from esprof.analyzers.rule import Case, Cause, Page, Rule


def missing_ranks(case: Case) -> Iterator[Cause]:
    """The job had more ranks than the run holds."""
    run = case.run
    missing = run.missing_ranks
    if not missing:
        return
    partial = case.replayed.built.counts.collectives_partial
    yield Cause(
        id="ESP903",
        title=f"{len(missing)} of {run.world_size} ranks {'is' if len(missing) == 1 else 'are'} missing",
        ranks=missing,
        confidence="high",
        evidence={
            "missing": Evidence(missing, "ranks"),
            "matched_without": Evidence(partial),
            "step": Evidence(round(case.pricer.step_ns), "ns"),
        },
        advice="A straggler among them cannot be seen, and waiting for them looks like transfer: record all ranks.",
    )


_PAGES = (
    Page(
        "ESP903",
        "Ranks are missing",
        "The job had more ranks than this run holds.",
        "`missing` lists them; `matched_without` is how many collective calls were matched though one of their members is "
        "missing.",
        "None: what a missing rank does to the others is seen only as their waiting, which in collectives cannot be told "
        "from transfer. Device-hours, samples and tokens are of the ranks that the run has.",
        "Record all ranks, or add their files.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=missing_ranks)
