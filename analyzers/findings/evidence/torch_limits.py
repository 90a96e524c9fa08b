"""ESP904: data that the job's PyTorch version does not provide."""

from collections.abc import Iterator

from esprof.analyzers.evidence import Evidence
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.run.run import WarningCode


def torch_limits(case: Case) -> Iterator[Cause]:
    """Data that the job's PyTorch version does not record."""
    lacks = tuple(warning.message for warning in case.run.warnings if warning.code == WarningCode.TORCH_LACKS)
    if lacks:
        yield Cause(
            id="ESP904",
            title="The job's PyTorch version records less than newer ones",
            ranks=tuple(case.run.ranks),
            confidence="high",
            evidence={"lacks": Evidence("; ".join(lacks))},
            advice="Results that need the missing data are absent from this run; all others are unaffected. Use a "
            "newer PyTorch version.",
        )


_PAGES = (
    Page(
        "ESP904",
        "The job's PyTorch version records less than newer ones",
        "The job ran with a PyTorch version that does not record some of the data that esprof uses.",
        "`lacks` says what is missing, and which version has it.",
        "None.",
        "If you need the missing data, record with a newer version; docs/reference/compatibility.md lists what each "
        "version records.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=torch_limits)
