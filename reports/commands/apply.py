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
@click.option(
    "--wait",
    type=click.FloatRange(0),
    default=60.0,
    metavar="SECONDS",
    show_default=True,
    help="Maximum wait for the job; 0 does not wait.",
)
@json_option
def command(plan: Path, target: str, wait: float, as_json: bool) -> int:
    """Send a plan to a running elastic job.

    TARGET is where the job reads its plan, as in Placement(plan=…): a file, a folder with plan.json
    (such as the Run directory), or HOST:PORT/KEY of a torch.distributed store. esprof gives the plan a version
    number, sends it, and waits for the job's answer. It is an error if the job refuses the plan or does not answer
    within --wait. The job returns to the previous plan by itself if steps become slower.

    \b
    esprof recommend RUN -o plan.json
    esprof apply plan.json RUN
    """
    source = _source(target)
    with status("Waiting for the job"):
        given, answered = deliver(read_plan(plan), source, wait)
    if answered is None:
        if not wait:
            click.echo(f"Sent plan {given.id}, version {given.version}", err=True)
            return EXIT_OK
        raise EsprofError(
            f"no job has answered within {wait:g} s",
            remedy="Check that the job runs and reads plans from TARGET. The plan stays there until the job reads it.",
        )
    if answered.state == "refused":
        raise EsprofError(f"the job refused the plan: {answered.reason}")
    answer(answered, _draw, as_json=as_json)
    return EXIT_OK


def _source(target: str) -> PlanSource:
    path = Path(target)
    if path.is_dir():
        return PlanFile(path / files.PLAN)
    if path.exists() or not re.fullmatch(r"[^/]+:\d+/.+", target):
        if not path.parent.is_dir():
            raise UsageError(
                f"there is no folder {path.parent}", remedy="Name the value of Placement(plan=…) in the job."
            )
        return PlanFile(path)
    from esprof.elastic.plans.store import connect  # It loads torch.

    return connect(target, _MAX_WAIT_FOR_STORE_S)


def _draw(status: PlanStatus, screen: Screen = PLAIN) -> str:
    """The state of the plan in the job, in one line."""
    about = f"plan {status.plan}, version {status.version}"
    if status.state == "pending":
        return drawn(screen, headline(f"The job will adopt {about} at step {status.step}", screen))
    if status.state == "adopted":
        return drawn(screen, headline(f"The job has adopted {about} before step {status.step}", screen))
    verb = {
        "kept": "has accepted",
        "missed": "has accepted, with a smaller gain than predicted,",
        "reverted": "has rolled back, because of longer steps,",
    }[status.state]
    steps = f": a step takes {units.duration(status.after_us)}" if status.after_us is not None else ""
    before = f", and took {units.duration(status.before_us)} before" if status.before_us is not None else ""
    return drawn(screen, headline(f"The job {verb} {about}{steps}{before}", screen))
