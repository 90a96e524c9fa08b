"""`esprof demo`."""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from esprof import recorder
from esprof.analyzers.finding import CPU_CONTENTION, Diagnosis
from esprof.core.errors import EsprofError
from esprof.recorder.launcher.launch import Recording
from esprof.recorder.shared.environment import changed
from esprof.reports.commands.common import json_option, json_text, refuse_stdout, say, status, wrote
from esprof.reports.commands.run_job import diagnosed, record, say_recorded, say_verdict
from esprof.run.raw.settings import Settings
from esprof.run.run import Run
from esprof.verbs import foreign_module_line

JOB = Path(recorder.__file__).parent / "demo_job.py"
WORKERS = 2
FAULT_SHARE = 0.4
"""Duration of the fault, relative to a step without it: more than any other cost of the job, less than its work."""
FAULTS = {"none": (0.0, 0.0), "slow-loader": (FAULT_SHARE, 0.0), "slow-rank": (0.0, FAULT_SHARE)}
"""Delay of the storage, and idle time of the device, of the rank with the fault; as shares of a step."""
FAMILY_OF_FAULT = {"slow-loader": "ESP1", "slow-rank": "ESP2"}
WINDOW = Settings(steps=16)
"""A longer window than usual, so that brief load by other processes matters less."""
MAX_QUIET_COST_PCT = 5
"""Largest saving of a finding without a fault, in per cent of a step."""
MAX_WAIT_SHARE = 0.1
"""Share of time waiting for a CPU from which the machine counts as busy; it is 0.02 on an idle machine."""
MAX_CPU_EXCESS = 0.05
"""Largest relative difference in CPU time of the workers on an idle machine; their work is the same."""


@dataclass(frozen=True)
class MachineFacts:
    """Measurements of this machine by the job."""

    step_s: float
    """Duration of a step without the fault."""
    waited: list[float]
    """By rank: the share of its time that it was ready to run but waited for a CPU."""
    cpu_s: list[float]
    """By rank: CPU time of the training, in seconds."""

    @property
    def others(self) -> list[str]:
        """Signs that other processes use this machine; empty on an idle one."""
        found, uneven = [], max(self.cpu_s) / min(self.cpu_s) - 1
        if max(self.waited) >= MAX_WAIT_SHARE:
            found.append(f"the workers waited for a CPU {100 * max(self.waited):.0f} % of the time")
        if uneven >= MAX_CPU_EXCESS:
            found.append(f"the same work took one worker {100 * uneven:.0f} % more CPU time than the other")
        return found


@click.command("demo")
@click.option(
    "--fault", type=click.Choice(list(FAULTS)), default="slow-loader", show_default=True, help="Fault to plant."
)
@click.option(
    "--rank",
    metavar="RANK",
    type=click.IntRange(0, WORKERS - 1),
    default=1,
    show_default=True,
    help="Rank that gets the fault.",
)
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default="esprof-demo",
    show_default=True,
    help="Directory for the run and its report.",
)
@click.option("-f", "--force", is_flag=True, help="Overwrite DIR if it exists.")
@json_option
def command(fault: str, rank: int, output: Path, force: bool, as_json: bool) -> int:
    """Record and diagnose a small training job with a planted fault.

    The job trains a small GPT in two processes on this machine, without a GPU. The fault adds 40 % to a step. The
    recorder and the diagnosis do not know about it.

    With --json, the diagnosis goes to stdout and the job's own output to stderr.

    \b
    esprof demo
    esprof demo --fault slow-rank --rank 0
    """
    refuse_stdout(output)
    beginning = f"training a small GPT on {WORKERS} workers, with {_planted(fault, rank)}"
    stdout = 2 if as_json else 1
    recording, measured = _record(config(fault, rank), output, force=force, beginning=beginning, stdout=stdout)
    if recording.exit_code:
        return recording.exit_code
    if recording.run is None or measured is None:
        raise recording.trouble or EsprofError("the demo job recorded no run")
    say_recorded(recording)
    say(_scale(fault, measured))
    diagnosis = diagnosed(recording)
    if diagnosis is None:
        return EsprofError.exit_code
    report = output / "report.html"
    _write_report(recording.run, report)
    trouble = unclear(diagnosis, fault, rank, measured)
    if as_json:
        click.echo(json_text(diagnosis))
    if trouble is not None:
        say(trouble)
    elif not as_json:
        say_verdict(diagnosis)
    wrote("report", report)
    return 0


def config(fault: str, rank: int) -> dict[str, Any]:
    """The job's config: the storage delay and the idle time of the device of each rank, as shares of a step."""
    storage, rest = FAULTS[fault]
    return {
        "slow_storage": [storage if worker == rank else 0.0 for worker in range(WORKERS)],
        "rest": [rest if worker == rank else 0.0 for worker in range(WORKERS)],
    }


def unclear(diagnosis: Diagnosis, fault: str, rank: int, measured: MachineFacts) -> str | None:
    """Why the planted fault is not the first finding; None if it is."""
    # Contention with other processes is a property of the machine, not of the job.
    findings = [finding for finding in diagnosis.findings if finding.id != CPU_CONTENTION]
    if fault == "none":
        if all(finding.saving_pct <= MAX_QUIET_COST_PCT for finding in findings):
            return None
        shown = f"no fault was planted, but the first finding of this run is {findings[0].id}"
    else:
        if findings and findings[0].id.startswith(FAMILY_OF_FAULT[fault]) and findings[0].ranks == (rank,):
            return None
        shown = f"the {fault} planted on rank {rank} is not the first finding of this run"
    if not measured.others:
        return f"{shown}, although this machine is not busy. Please report this as a bug."
    because = "; ".join(measured.others)
    return f"this machine is busy: {because}. Therefore {shown}. Run the demo again on an idle machine."


def _record(job_config: dict[str, Any], output: Path, **options: Any) -> tuple[Recording, MachineFacts | None]:
    """The recording of the job, and its measurements of this machine. `options` are those of `record`."""
    with tempfile.TemporaryDirectory(prefix="gpt-") as folder, changed({"OMP_NUM_THREADS": "1"}):
        file = Path(folder) / "config.json"
        file.write_text(json.dumps(job_config))
        command = [*foreign_module_line("torch.distributed.run"), "--standalone", f"--nproc-per-node={WORKERS}"]
        recording = record([*command, str(JOB), f"--config={file}"], output, WINDOW, **options)
        measured = file.with_name("measured.json")
        return recording, MachineFacts(**json.loads(measured.read_text())) if measured.exists() else None


def _write_report(run: Run, path: Path) -> None:
    from esprof.analyzers import summarize
    from esprof.reports.html.page import write_report

    with status("Drawing the page"):
        write_report(summarize(run), path)


def _scale(fault: str, measured: MachineFacts) -> str:
    step_ms = 1000 * measured.step_s
    step = f"without recorder and fault, a step took {step_ms:.0f} ms on this machine"
    return step if fault == "none" else f"{step}; the fault adds {FAULT_SHARE * step_ms:.0f} ms to each step"


def _planted(fault: str, rank: int) -> str:
    return "no fault" if fault == "none" else f"a {fault} planted on rank {rank}"
