"""`esprof elastic`."""

import os
import re
import time
from functools import partial
from pathlib import Path

import click

from esprof.core.errors import EXIT_ERROR, EXIT_OK, EXIT_REGRESSION, EsprofError, UsageError
from esprof.elastic.launch.generation import WorkerPlace
from esprof.elastic.launch.hosts import HostsMeeting, run
from esprof.elastic.launch.messages import LaunchState, read_state, want
from esprof.elastic.launch.supervisor import Supervisor, SupervisorSettings
from esprof.elastic.verify.diff import diff
from esprof.reports.commands.common import answer, json_option, output_options
from esprof.reports.terminal.elastic import render_diff
from esprof.run.files import LAUNCH

_EXIT_CODES = {"equal": EXIT_OK, "differ": EXIT_REGRESSION, "not-comparable": EXIT_ERROR}


@click.group("elastic")
def command() -> None:
    """Start elastic jobs, scale them, and compare what they did."""


@command.command("diff")
@click.argument("log_a", metavar="A", type=click.Path(path_type=Path))
@click.argument("log_b", metavar="B", type=click.Path(path_type=Path))
@json_option
@output_options("-", "answer")
def diff_command(log_a: Path, log_b: Path, as_json: bool, output: Path, force: bool) -> int:
    """Compare two step-hash logs, and name the first step at which they part.

    A and B are what ElasticTrainer wrote with hash_log=. Equal at every step exits with 0; different with 3, and the first
    differing tensor is named, with its distance where hash_log_values=True kept the values; logs of different jobs, or of
    machines whose bits nobody promised to be equal, are not comparable: exit 1.

    \b
    esprof elastic diff static.jsonl elastic.jsonl
    """
    found = diff(log_a, log_b)
    answer(found, lambda value, _: render_diff(value), as_json=as_json, output=output, force=force)
    return _EXIT_CODES[found.outcome]


_POLL_PROCESSES_S = 0.05


@command.command("launch", context_settings={"allow_interspersed_args": False})
@click.argument("script", metavar="-- SCRIPT.py… | -m MODULE…", nargs=-1, type=click.UNPROCESSED)
@click.option("--procs", type=click.IntRange(1), metavar="N", help="Processes to begin with, all on this machine.")
@click.option("--most", type=click.IntRange(1), metavar="N", help="Processes that it may become; as many as CPUs.")
@click.option("--cold", is_flag=True, help="Start new processes only when the old ones have left: less memory, longer.")
@click.option("--hosts", metavar="N|LEAST:MOST", help="Hosts that may join; run this on each of them.")
@click.option("--rendezvous", metavar="HOST:PORT", help="Where hosts meet: at the one that stays the longest.")
@click.option("--procs-per-host", type=click.IntRange(1), default=1, show_default=True, help="Processes of each host.")
@click.option("--job", default="esprof", show_default=True, metavar="NAME", help="The same on all hosts of a job.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=LAUNCH,
    show_default=True,
    help="Where the launcher keeps its log, and hears of wishes; each host has its own.",
)
def launch_command(
    script: tuple[str, ...],
    procs: int | None,
    most: int | None,
    cold: bool,
    hosts: str | None,
    rendezvous: str | None,
    procs_per_host: int,
    job: str,
    folder: Path,
) -> int:
    """Start an elastic job whose number of processes may change.

    The script trains by ElasticTrainer with a checkpoint folder, and needs nothing else for it: asked to, it saves before
    the next step, leaves, and is started again with other processes; no bit of the training depends on it.

    With --procs one controller starts all processes, on this machine, and `esprof elastic scale` or a plan changes their
    number. After a crash the job goes on from its last checkpoint. SIGTERM makes it save and end with 0.

    With --hosts and --rendezvous torchrun starts the processes of this host. Hosts on which the same command is run join the
    job; SIGTERM makes this host leave with 0, and the others go on.

    \b
    esprof elastic launch --procs 2 -- train.py --epochs 3
    esprof elastic launch --hosts 1:4 --rendezvous 10.0.0.1:29400 -- train.py
    """
    if not script:
        raise UsageError("there is no script to run", remedy="Name it after --, as for Python: SCRIPT.py or -m MODULE.")
    if (procs is None) == (hosts is None):
        raise UsageError("either --procs or --hosts says where the job runs")
    if hosts is not None:
        if most is not None or cold:
            raise UsageError("--most and --cold are of --procs")
        return run(_rendezvous(hosts, rendezvous, job), procs_per_host, script, folder)
    if rendezvous is not None:
        raise UsageError("--rendezvous is of --hosts")
    assert procs is not None, "checked above"
    places = [WorkerPlace()] * max(procs, most or os.cpu_count() or 1)
    say = partial(click.echo, err=True)
    supervisor = Supervisor(
        places, script, folder, SupervisorSettings(warm=not cold), say=lambda line: say(f"esprof: {line}")
    )
    return supervisor.run(procs)


def _rendezvous(hosts: str, place: str | None, job: str) -> HostsMeeting:
    counts = re.fullmatch(r"(\d{1,6})(?::(\d{1,6}))?", hosts)
    where = re.fullmatch(r"([^:]+):(\d{1,5})", place or "")
    if counts is None:
        raise UsageError(f"{hosts} is no number of hosts such as 4 or 1:4")
    if where is None:
        raise UsageError("--hosts needs --rendezvous HOST:PORT: where hosts meet")
    least, most = int(counts[1]), int(counts[2] or counts[1])
    if not 1 <= least <= most:
        raise UsageError(f"{hosts} is no range of hosts")
    return HostsMeeting(host=where[1], port=int(where[2]), least=least, most=most, job=job)


@command.command("scale")
@click.argument("world", metavar="N", type=click.IntRange(1))
@click.argument("folder", type=click.Path(path_type=Path), default=LAUNCH)
@click.option("--wait", type=click.FloatRange(0), default=60.0, metavar="SECONDS", help="How long to wait for it (60).")
def scale_command(world: int, folder: Path, wait: float) -> int:
    """Change the number of processes of a job that `esprof elastic launch --procs` has started.

    FOLDER is the launcher's. The job saves before its next step, and goes on with N processes.

    \b
    esprof elastic scale 4
    """
    state = _running(folder)
    if world > state.most:
        raise UsageError(
            f"the launcher has places for 1 to {state.most} processes, not for {world}",
            remedy=f"Start it with --most {world}.",
        )
    want(folder, world)
    until = time.monotonic() + wait
    while (state := _running(folder)).world != world:
        if time.monotonic() >= until:
            if not wait:
                return EXIT_OK
            raise EsprofError(f"the job still has {state.world} processes after {wait:g} s: it goes on to change")
        time.sleep(_POLL_PROCESSES_S)
    click.echo(f"The job has {world} processes", err=True)
    return EXIT_OK


def _running(folder: Path) -> LaunchState:
    """The state of a launcher that runs. Raises UsageError where none does."""
    state = read_state(folder)
    if state is None:
        raise UsageError(f"no job was launched in {folder}", remedy="Name the --folder of `esprof elastic launch`.")
    try:
        os.kill(state.pid, 0)
    except ProcessLookupError:
        raise UsageError(f"the launcher of {folder} has ended") from None
    except PermissionError:
        pass
    return state
