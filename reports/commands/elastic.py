"""`esprof elastic`."""

import os
import re
import sys
import time
from functools import partial
from pathlib import Path

import click

from esprof.core.errors import EXIT_ERROR, EXIT_OK, EXIT_REGRESSION, EsprofError, UsageError
from esprof.elastic.launch.generation import WorkerSlot
from esprof.elastic.launch.hosts import HostsMeeting, run
from esprof.elastic.launch.messages import LaunchState, read_state, want
from esprof.elastic.launch.supervisor import Supervisor, SupervisorSettings
from esprof.elastic.verify.diff import diff
from esprof.recorder.launcher.launch import require_torch
from esprof.reports.commands.common import answer, json_option, output_options
from esprof.reports.terminal.elastic import render_diff
from esprof.run.files import LAUNCH

_EXIT_CODES = {"equal": EXIT_OK, "differ": EXIT_REGRESSION, "not-comparable": EXIT_ERROR}


@click.group("elastic")
def command() -> None:
    """Start and scale elastic jobs, and compare their results."""


@command.command("diff")
@click.argument("log_a", metavar="A", type=click.Path(path_type=Path))
@click.argument("log_b", metavar="B", type=click.Path(path_type=Path))
@json_option
@output_options("-", "result")
def diff_command(log_a: Path, log_b: Path, as_json: bool, output: Path, force: bool) -> int:
    """Compare the step hashes of two jobs and find the first different step.

    A and B are logs of ElasticTrainer(proof=Proof(hash_log=…)), with a hash of each weight tensor and optimizer state
    after each step. If they differ, esprof names the first tensor that differs. For logs written with
    hash_log_values=True it also shows by how much. Logs of different scripts, seeds or types of machines are not
    comparable.

    Exit codes: 0 equal at every step, 1 not comparable, 3 different.

    \b
    esprof elastic diff static.jsonl elastic.jsonl
    """
    found = diff(log_a, log_b)
    answer(found, lambda value, _: render_diff(value), as_json=as_json, output=output, force=force)
    return _EXIT_CODES[found.outcome]


_POLL_PROCESSES_S = 0.05


@command.command("launch", context_settings={"allow_interspersed_args": False})
@click.argument("script", metavar="-- SCRIPT.py… | -m MODULE…", nargs=-1, type=click.UNPROCESSED)
@click.option("--procs", type=click.IntRange(1), metavar="N", help="Initial number of processes, all on this machine.")
@click.option(
    "--most",
    type=click.IntRange(1),
    metavar="N",
    help="With --procs: maximum number of processes. Default: the number of CPUs.",
)
@click.option(
    "--cold",
    is_flag=True,
    help="With --procs: start new processes after the old ones have exited. Slower, but needs less memory.",
)
@click.option("--hosts", metavar="N|LEAST:MOST", help="Number of hosts, or a range; run this command on each host.")
@click.option(
    "--rendezvous",
    metavar="HOST:PORT",
    help="With --hosts: address of the rendezvous of torchrun. Its host must not leave before the job ends.",
)
@click.option(
    "--procs-per-host",
    metavar="N",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="With --hosts: processes on each host.",
)
@click.option(
    "--job",
    default="esprof",
    show_default=True,
    metavar="NAME",
    help="With --hosts: name of the job, the same on all hosts.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=LAUNCH,
    show_default=True,
    help="Folder for the launcher's log and for requests of `esprof elastic scale`; each host needs its own.",
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

    The script trains with ElasticTrainer and a checkpoint folder. To change the number of
    processes, the job saves a checkpoint and restarts. Trained weights are bit-identical for any number.

    With --procs, all processes run on this machine, and `esprof elastic scale` or a plan changes their number. After
    a crash the job restarts from its last checkpoint. On SIGTERM the job saves a checkpoint and exits with 0.

    With --hosts and --rendezvous, torchrun starts the processes of this host. Run the same command on a further host
    to let it join. On SIGTERM this host leaves with exit code 0, and the others continue.

    \b
    esprof elastic launch --procs 2 -- train.py --epochs 3
    esprof elastic launch --hosts 1:4 --rendezvous 10.0.0.1:29400 -- train.py
    """
    if not script:
        raise UsageError("no script to run", remedy="Name it after --: SCRIPT.py or -m MODULE.")
    if (procs is None) == (hosts is None):
        raise UsageError("exactly one of --procs and --hosts is needed")
    if script[0] != "-m" and not Path(script[0]).is_file():
        raise UsageError(f"there is no script {script[0]}", remedy="Name a file, or -m and a module.")
    require_torch(sys.executable)
    if hosts is not None:
        if most is not None or cold:
            raise UsageError("--most and --cold need --procs")
        return run(_rendezvous(hosts, rendezvous, job), procs_per_host, script, folder)
    if rendezvous is not None:
        raise UsageError("--rendezvous needs --hosts")
    assert procs is not None, "checked above"
    slots = [WorkerSlot()] * max(procs, most or os.cpu_count() or 1)
    say = partial(click.echo, err=True)
    supervisor = Supervisor(
        slots, script, folder, SupervisorSettings(warm=not cold), say=lambda line: say(f"esprof: {line}")
    )
    return supervisor.run(procs)


def _rendezvous(hosts: str, address: str | None, job: str) -> HostsMeeting:
    counts = re.fullmatch(r"(\d{1,6})(?::(\d{1,6}))?", hosts)
    where = re.fullmatch(r"([^:]+):(\d{1,5})", address or "")
    if counts is None:
        raise UsageError(f"{hosts} is not a number of hosts such as 4 or 1:4")
    if where is None:
        raise UsageError("--hosts needs --rendezvous HOST:PORT")
    least, most = int(counts[1]), int(counts[2] or counts[1])
    if not 1 <= least <= most:
        raise UsageError(f"{hosts} is not a range of hosts")
    return HostsMeeting(host=where[1], port=int(where[2]), least=least, most=most, job=job)


@command.command("scale")
@click.argument("world", metavar="N", type=click.IntRange(1))
@click.argument("folder", type=click.Path(path_type=Path), default=LAUNCH)
@click.option(
    "--wait",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Maximum wait for the change; 0 does not wait.",
)
def scale_command(world: int, folder: Path, wait: float) -> int:
    """Change the number of processes of a running elastic job.

    This works for jobs started by `esprof elastic launch --procs`. FOLDER is the --folder of that command (default:
    esprof-launch). The job saves a checkpoint before its next step and continues with N processes.

    \b
    esprof elastic scale 4
    """
    state = _running(folder)
    if world > state.most:
        raise UsageError(
            f"the launcher allows 1 to {state.most} processes, not {world}",
            remedy=f"Start it with --most {world}.",
        )
    want(folder, world)
    until = time.monotonic() + wait
    while (state := _running(folder)).world != world:
        if time.monotonic() >= until:
            if not wait:
                return EXIT_OK
            raise EsprofError(f"the job still has {state.world} processes after {wait:g} s; the change continues")
        time.sleep(_POLL_PROCESSES_S)
    click.echo(f"The job has {world} processes", err=True)
    return EXIT_OK


def _running(folder: Path) -> LaunchState:
    """The state of the running launcher. Raises UsageError if there is none."""
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
