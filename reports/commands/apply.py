"""`esprof apply`."""

import re
from pathlib import Path

import click

from esprof.core.errors import EXIT_OK, EsprofError, UsageError
from esprof.core.plan import PlanStatus, read_plan
from esprof.elastic.plans.delivery import deliver
from esprof.elastic.plans.source import PlanFile, PlanSource
from esprof.reports import units
from esprof.reports.commands.common import answer, json_option, status
from esprof.reports.terminal.screen import PLAIN, Screen, drawn, headline
from esprof.run import files

_MAX_WAIT_FOR_STORE_S = 10.0


@click.command("apply")
@click.argument("plan", type=click.Path(path_type=Path))
@click.argument("target")
@click.option("--wait", type=click.FloatRange(0), default=60.0, metavar="SECONDS", help="How long to wait for it (60).")
@json_option
def command(plan: Path, target: str, wait: float, as_json: bool) -> int:
    """Hand a plan to a running elastic job, and tell what comes of it.

    TARGET is what the job was given as Placement(plan=…): the file, a folder that holds it as plan.json, or
    HOST:PORT/KEY of a store. The plan's version becomes one above that of the plan before it. A plan that the job refuses
    is an error, with the job's reason; so is a job that says nothing within --wait. With --wait 0 nobody waits.

    \b
    esprof recommend RUN -o plan.json
    esprof apply plan.json RUN
    """
    source = _source(target)
    with status("Waiting for the job"):
        given, told = deliver(read_plan(plan), source, wait)
    if told is None:
        if not wait:
            click.echo(f"Handed over plan {given.id}, version {given.version}", err=True)
            return EXIT_OK
        raise EsprofError(
            f"no job has said anything of the plan for {wait:g} s",
            remedy="Is the job running, and does it watch this place? Then the plan waits there for it.",
        )
    if told.state == "refused":
        raise EsprofError(f"the job refused the plan: {told.reason}")
    answer(told, _draw, as_json=as_json)
    return EXIT_OK


def _source(target: str) -> PlanSource:
    path = Path(target)
    if path.is_dir():
        return PlanFile(path / files.PLAN)
    if path.exists() or not re.fullmatch(r"[^/]+:\d+/.+", target):
        if not path.parent.is_dir():
            raise UsageError(f"there is no folder {path.parent}", remedy="Name what the job was given as plan=.")
        return PlanFile(path)
    from esprof.elastic.plans.store import connect  # It loads torch.

    return connect(target, _MAX_WAIT_FOR_STORE_S)


def _draw(told: PlanStatus, screen: Screen = PLAIN) -> str:
    """What the job says of the plan, in a line."""
    about = f"plan {told.plan}, version {told.version}"
    if told.state == "pending":
        return drawn(screen, headline(f"The job will adopt {about} at step {told.step}", screen))
    if told.state == "adopted":
        return drawn(screen, headline(f"The job has adopted {about} before step {told.step}", screen))
    said = {
        "kept": "keeps",
        "missed": "keeps, though it brings less than promised,",
        "reverted": "has taken back, since it made steps longer,",
    }[told.state]
    steps = f": a step takes {units.duration(told.after_us)}" if told.after_us is not None else ""
    before = f", and took {units.duration(told.before_us)} before" if told.before_us is not None else ""
    return drawn(screen, headline(f"The job {said} {about}{steps}{before}", screen))
