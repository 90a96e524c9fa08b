"""The result of `doctor` for a terminal."""

from rich.console import RenderableType
from rich.text import Text

from esprof.core.text import printable
from esprof.recorder.doctor.health import Health, HealthCheck
from esprof.reports import units
from esprof.reports.terminal.screen import PLAIN, Screen, drawn, grid, heading, headline, wrapped

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def draw_health(answer: Health, screen: Screen = PLAIN) -> str:
    """The verdict, every check, and what a cluster must allow. Only checks that are not ok are explained."""
    failed = [check.name for check in answer.checks if check.state == "fail"]
    warned = sum(check.state == "warn" for check in answer.checks)
    verdict = f"Not sound: {', '.join(failed)}" if failed else "This installation is sound"
    limits = f", with {units.plural(warned, 'warning')}" if warned else ""
    checks = grid("", "", "", header=False, padding=2)
    for check in answer.checks:
        checks.add_row(Text(check.state, style=_STYLES[check.state]), check.name, printable(check.found, 500))
    blocks: list[RenderableType] = [headline(f"{verdict}{limits}.", screen), "", checks, ""]
    for check in answer.checks:
        if check.state != "ok":
            blocks += [_explained(check, screen), ""]
    blocks.append(heading("On several hosts, the cluster must allow"))
    blocks += [_indented(f"{need.what}. {need.why}", screen) for need in answer.cluster]
    return drawn(screen, *blocks)


def _explained(check: HealthCheck, screen: Screen) -> Text:
    return Text.assemble(
        (f"{check.name}: ", _STYLES[check.state]),
        "\n  ".join(wrapped(f"{check.means} {check.remedy}", screen.width, None)),
    )


def _indented(text: str, screen: Screen) -> Text:
    return Text("- " + "\n  ".join(wrapped(text, screen.width - 2, None)))
