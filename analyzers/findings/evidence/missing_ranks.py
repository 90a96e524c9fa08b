"""ESP903: ranks that are missing from the run."""

from collections.abc import Iterator

from esprof.analyzers.evidence import Evidence
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.core import readable


def missing_ranks(case: Case) -> Iterator[Cause]:
    """Ranks of the job that the run does not contain."""
    run = case.run
    missing = run.missing_ranks
    if not missing:
        return
    partial = case.replayed.built.counts.collectives_partial
    yield Cause(
        id="ESP903",
        title=f"{len(missing)} of {run.world_size} ranks {readable.verb('are', missing)} missing",
        ranks=missing,
        confidence="high",
        evidence={
            "missing": Evidence(missing, "ranks"),
            "matched_without": Evidence(partial),
            "step": Evidence(round(case.pricer.step_ns), "ns"),
        },
        advice="A straggler among them is invisible, and waiting for them looks like communication. Record all ranks.",
    )


_PAGES = (
    Page(
        "ESP903",
        "Ranks are missing",
        "The job had more ranks than this run.",
        "`missing` lists them; `matched without` is the number of collective calls that were matched although a "
        "member is missing.",
        "None: waiting for a missing rank cannot be distinguished from communication. Device-hours, samples and tokens "
        "cover only the ranks of the run.",
        "Record all ranks, or add their files.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=missing_ranks)
