"""The tuning loop of a running job: either `esprof tune`, which has started the job and set a variable, or a process
that the job starts."""

import os
import subprocess
import warnings
import weakref
from contextlib import suppress
from pathlib import Path

from esprof.elastic.options import Placement, Tuning
from esprof.elastic.plans.source import PlanSource
from esprof.run import files
from esprof.verbs import command_line

VARIABLE = "ESPROF_TUNE"
"""The Run directory."""

_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK")
"""Variables that would make a process a rank of the job."""
_MAX_WAIT_FOR_END_S = 5.0


def with_tuning(
    telemetry: str | Path | None, placement: Placement
) -> tuple[str | Path | None, str | Path | PlanSource | None]:
    """(Run directory, source of plans) of a trainer; None is replaced by those of the tuning loop."""
    plan, tuning = placement.plan, placement.tuning
    run = os.environ.get(VARIABLE) or (tuning.run if tuning is not None else None)
    if not run:
        return telemetry, plan
    return telemetry or run, plan or Path(run) / files.PLAN


class TuningLoop:
    """Runs `esprof tune --attach` in a separate process during the life of the job. Its failures do not affect the job."""

    def __init__(self, tuning: Tuning) -> None:
        run = Path(tuning.run)
        options = ["--attach", str(run), "--with-parent", str(os.getpid())]
        if tuning.compression:
            options += ["--allow", "compression"]
        self._process: subprocess.Popen[bytes] | None = None
        try:
            run.mkdir(mode=0o700, parents=True, exist_ok=True)
            environment = {name: value for name, value in os.environ.items() if name not in _RANK_VARIABLES}
            self._process = subprocess.Popen(
                command_line("tune", *options), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment
            )
        except OSError as error:
            warnings.warn(f"tuning is off for this job: {error}", stacklevel=3)
            return
        weakref.finalize(self, _end, self._process)

    def close(self) -> None:
        if self._process is not None:
            _end(self._process)


def start_loop(tuning: Tuning | None, rank: int) -> TuningLoop | None:
    """Start the loop on rank 0 if the job asks for one; None if `esprof tune` has started the job."""
    return TuningLoop(tuning) if tuning is not None and rank == 0 and not os.environ.get(VARIABLE) else None


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_MAX_WAIT_FOR_END_S)
