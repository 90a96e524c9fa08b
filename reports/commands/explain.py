"""`esprof explain`."""

import click
import msgspec

from esprof.analyzers.findings import PAGES
from esprof.analyzers.rule import Page
from esprof.core.errors import UsageError
from esprof.reports.commands.common import answer, json_option
from esprof.reports.terminal.diagnosis import draw_pages


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """`esprof explain --json`."""

    schema: str = "esprof.explain/1"
    pages: tuple[Page, ...]


@click.command("explain")
@click.argument("finding_id", metavar="[ID]", required=False)
@json_option
def command(finding_id: str | None, as_json: bool) -> None:
    """Explain a finding: what it means and how to fix it.

    Without an ID, list all findings.

    \b
    esprof explain
    esprof explain ESP101
    """
    explained = Explanation(pages=_pages(finding_id))
    answer(explained, lambda found, screen: draw_pages(found.pages, screen), as_json=as_json)


def _pages(finding_id: str | None) -> tuple[Page, ...]:
    if finding_id is None:
        return tuple(PAGES.values())
    page = PAGES.get(finding_id.upper()) or PAGES.get(f"ESP{finding_id}")
    if page is None:
        raise UsageError(f"there is no finding {finding_id!r}", remedy="`esprof explain` lists all.")
    return (page,)
