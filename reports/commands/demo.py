"""`esprof demo`."""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from esprof import recorder
from esprof.errors import EsprofError
from esprof.output import claim
from esprof.recorder.launcher.launch import Recording, require_torch
from esprof.recorder.shared.environment import changed
from esprof.recorder.shared.settings import Settings
from esprof.reports.commands.common import json_option, json_text, status, wrote
from esprof.reports.commands.record import diagnosed, record, say, say_recorded, say_verdict
from esprof.trace.run import Run

JOB = Path(recorder.__file__).parent / "demo_job.py"
WORKERS = 2
READ_LATENCY = 0.03
"""Seconds that a slow storage takes to answer a read; a batch has 8, far more than a step of the job lasts."""
REST = 0.025
"""Seconds that a throttled device rests before each of the model's 4 blocks: together about as long as a step."""
FAULTS = {"none": (0.0, 0.0), "slow-loader": (READ_LATENCY, 0.0), "slow-rank": (0.0, REST)}


@click.command("demo")
@click.option(
    "--fault", type=click.Choice(list(FAULTS)), default="slow-loader", show_default=True, help="What to plant."
)
@click.option("--rank", type=click.IntRange(0, WORKERS - 1), default=1, show_default=True, help="Where to plant it.")
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default="esprof-demo",
    show_default=True,
    help="Where the run and its report go.",
)
@click.option("-f", "--force", is_flag=True, help="Overwrite DIR if it exists.")
@json_option
def command(fault: str, rank: int, output: Path, force: bool, as_json: bool) -> int:
    """Train two workers with a planted fault; record, diagnose, report.

    The job is a small GPT on two processes of this machine; no GPU is needed. Neither the recorder nor the diagnosis is
    told the fault. With --json the diagnosis goes to stdout, and the job's own output to stderr.
    """
    require_torch("python")
    claim(output, force=force)
    say(f"training a small GPT on {WORKERS} workers, with {_planted(fault, rank)}")
    recording = _record(config(fault, rank), output, force=force, stdout=2 if as_json else 1)
    if recording.exit_code:
        return recording.exit_code
    if recording.run is None:
        raise recording.trouble or EsprofError("the demo left no run")
    say_recorded(recording)
    diagnosis = diagnosed(recording)
    if diagnosis is None:
        return EsprofError.exit_code
    report = output / "report.html"
    _write_report(recording.run, report)
    if as_json:
        click.echo(json_text(diagnosis))
    else:
        say_verdict(diagnosis)
    wrote("report", report)
    return 0


def config(fault: str, rank: int) -> dict[str, Any]:
    """The job's config: per rank, how long its storage takes for a read and how long its device rests."""
    latency, rest = FAULTS[fault]
    return {
        "read_latency": [latency if worker == rank else 0.0 for worker in range(WORKERS)],
        "rest": [rest if worker == rank else 0.0 for worker in range(WORKERS)],
    }


def _record(job_config: dict[str, Any], output: Path, *, force: bool, stdout: int) -> Recording:
    with tempfile.TemporaryDirectory(prefix="gpt-") as folder, changed({"OMP_NUM_THREADS": "1"}):
        file = Path(folder) / "config.json"
        file.write_text(json.dumps(job_config))
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORKERS}"]
        return record([*command, str(JOB), f"--config={file}"], output, Settings(), force=force, stdout=stdout)


def _write_report(run: Run, path: Path) -> None:
    from esprof.analyzers import report_run
    from esprof.reports.html.page import write_report

    with status("Drawing the page"):
        write_report(report_run(run), path)


def _planted(fault: str, rank: int) -> str:
    return "no fault" if fault == "none" else f"a {fault} planted on rank {rank}"
