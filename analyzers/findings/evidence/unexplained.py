"""ESP901: much of the step is unexplained."""

from collections.abc import Iterator

from esprof.analyzers.evidence import Evidence
from esprof.analyzers.rule import Case, Cause, Page, Rule


def unexplained(case: Case) -> Iterator[Cause]:
    """A large share of the critical path has no known cause."""
    if case.is_explained:
        return
    explained, dfg = case.replayed.explained_pct, case.replayed.built.dfg
    with_syncs = " with CUDA synchronisation events (`esprof record` does)" * dfg.has_gpu()
    yield Cause(
        id="ESP901",
        title=f"Only {explained:.0f} % of the critical path is explained",
        ranks=(),
        confidence="high",
        evidence={"explained": Evidence(round(explained / 100, 4), "share")},
        advice=f"Record more steps{with_syncs}. Treat predicted savings as upper bounds.",
    )


_PAGES = (
    Page(
        "ESP901",
        "Much of the step is unexplained",
        "A large share of the critical path is contention, or waiting for which the trace shows no cause.",
        "`explained` is the share of the critical path with a known cause. Not explained are residuals (waiting without a "
        "recorded cause), contention (operations slowed down by others that run at the same time) and time in which a "
        "recorded operation did not progress.",
        "No saving of its own. The savings of the other findings are less reliable.",
        "Record more steps; on GPUs with synchronisation events.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=unexplained)
