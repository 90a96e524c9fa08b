"""ESP904: what the torch of the job cannot tell."""

from collections.abc import Iterator

from esprof.analyzers.evidence import Evidence
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.run.run import WarningCode


def torch_limits(case: Case) -> Iterator[Cause]:
    """The job ran with a torch that records less than others."""
    lacks = tuple(warning.message for warning in case.run.warnings if warning.code == WarningCode.TORCH_LACKS)
    if lacks:
        yield Cause(
            id="ESP904",
            title="The job's torch tells less than newer ones",
            ranks=tuple(case.run.ranks),
            confidence="high",
            evidence={"lacks": Evidence("; ".join(lacks))},
            advice="What rests on it is missing from this run, the rest is as sure as ever. A newer torch tells it.",
        )


_PAGES = (
    Page(
        "ESP904",
        "The job's torch tells less than newer ones",
        "The job ran with a torch that lacks something by which others tell more.",
        "`lacks` says what, and of which version.",
        "None.",
        "Record with a newer torch where you need what is missing; "
        "docs/reference/compatibility.md says what each version tells.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=torch_limits)
