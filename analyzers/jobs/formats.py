"""Readers of public job logs with one table: a row for each job."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from esprof.analyzers.jobs.log import JobLog, Lack, State, Times

_SLURM: Mapping[str, State] = {
    "COMPLETED": "completed",
    "CANCELLED": "cancelled",
    "FAILED": "failed",
    "TIMEOUT": "failed",
    "NODE_FAIL": "failed",
}
"""As the authors of Helios and Acme count them."""
_KUBERNETES: Mapping[str, State] = {
    "Succeeded": "completed",
    "Failed": "failed",
    "Running": "running",
    "Pending": "waiting",
}


@dataclass(frozen=True, kw_only=True)
class TableFormat:
    """Which columns of a table mean what."""

    name: str
    known_by: frozenset[str]
    """Columns that no other format has together."""
    gpus: tuple[str, ...]
    """Columns whose product is the number of GPUs, in units of `gpu_unit`."""
    gpu_unit: float = 1.0
    submitted: str
    started: str | None = None
    ended: str | None = None
    duration: str | None = None
    """Seconds; used where the log lacks a start or an end."""
    servers: str | None = None
    state: str | None = None
    states: Mapping[str, State] = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        """All columns that are read."""
        named = (self.submitted, self.started, self.ended, self.duration, self.servers, self.state)
        return list(dict.fromkeys([*self.gpus, *filter(None, named)]))

    @property
    def required(self) -> list[str]:
        """Columns without which nothing can be computed."""
        return [*self.gpus, self.submitted]


FORMATS = (
    TableFormat(
        name="Philly, reduced",
        known_by=frozenset({"timestamp", "num_gpus", "gpu_time", "cluster"}),
        gpus=("num_gpus",),
        submitted="timestamp",
        duration="duration",
    ),
    TableFormat(
        name="Helios",
        known_by=frozenset({"job_id", "vc", "gpu_num", "submit_time"}),
        gpus=("gpu_num",),
        submitted="submit_time",
        started="start_time",
        ended="end_time",
        duration="duration",
        servers="node_num",
        state="state",
        states=_SLURM,
    ),
    # Not its columns `duration` and `gpu_time`: in Kalos they include the time in the queue.
    TableFormat(
        name="Acme",
        known_by=frozenset({"job_id", "type", "gpu_num", "submit_time"}),
        gpus=("gpu_num",),
        submitted="submit_time",
        started="start_time",
        ended="end_time",
        servers="node_num",
        state="state",
        states=_SLURM,
    ),
    TableFormat(
        name="PAI 2023",
        known_by=frozenset({"name", "num_gpu", "gpu_milli", "pod_phase"}),
        gpus=("num_gpu", "gpu_milli"),
        gpu_unit=1000,
        submitted="creation_time",
        started="scheduled_time",
        ended="deletion_time",
        state="pod_phase",
        states=_KUBERNETES,
    ),
    TableFormat(
        name="PAI 2026",
        known_by=frozenset({"job_name", "gpu_request", "worker_num", "submit_time"}),
        gpus=("gpu_request", "worker_num"),
        submitted="submit_time",
        duration="duration",
    ),
)


def format_of(columns: frozenset[str]) -> TableFormat | None:
    """The format of a table with these columns; None for an unknown one."""
    return next((one for one in FORMATS if one.known_by <= columns), None)


def jobs_of(table: pd.DataFrame, layout: TableFormat) -> JobLog:
    """The jobs of a table, whose columns are texts. Columns that `layout` names may be missing, except required ones."""
    times = Times()
    rows = len(table)

    def numbers(name: str | None) -> np.ndarray:
        known = name is not None and name in table
        return pd.to_numeric(table[name], errors="coerce").to_numpy(float) if known else np.full(rows, np.nan)

    def seconds(name: str | None) -> np.ndarray:
        return times.seconds(table[name], name) if name is not None and name in table else np.full(rows, np.nan)

    submitted, started, ended = seconds(layout.submitted), seconds(layout.started), seconds(layout.ended)
    run_s = np.where(np.isnan(ended - started), numbers(layout.duration), ended - started)
    return JobLog(
        format=layout.name,
        job=np.arange(rows),
        state=states(table.get(layout.state), layout.states, rows),
        gpus=np.prod([numbers(name) for name in layout.gpus], axis=0) / layout.gpu_unit,
        servers=numbers(layout.servers),
        queued_s=submitted,
        started_s=started,
        run_s=run_s,
        lacks=_lacks(table, layout),
        notes=tuple(times.notes),
    )


def states(words: pd.Series | None, known: Mapping[str, State], rows: int) -> np.ndarray:
    """The state of each row, str[rows], from the words of the log."""
    if words is None:
        return np.full(rows, "unknown", dtype=object)
    found: np.ndarray = words.map(known).fillna("unknown").to_numpy(object)
    return found


def _lacks(table: pd.DataFrame, layout: TableFormat) -> frozenset[Lack]:
    columns: dict[Lack, str | None] = {"state": layout.state, "servers": layout.servers, "start": layout.started}
    return frozenset({"attempts", *(lack for lack, name in columns.items() if name is None or name not in table)})
