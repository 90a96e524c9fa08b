"""Reader of Alibaba PAI's log of 2020: a table of jobs, and one of their tasks with the GPUs.

Weng et al., MLaaS in the Wild, NSDI 2022. The published tables have no line of column names.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from esprof.analyzers.jobs.formats import states
from esprof.analyzers.jobs.log import JobLog, State, Times
from esprof.analyzers.jobs.tables import read_table

JOBS, TASKS = "pai_job_table.csv", "pai_task_table.csv"

_JOB_COLUMNS = ["job_name", "inst_id", "user", "status", "start_time", "end_time"]
_TASK_COLUMNS = [
    "job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem", "plan_gpu", "gpu_type",
]  # fmt: skip
_STATES: Mapping[str, State] = {
    "Terminated": "completed",
    "Failed": "failed",
    "Running": "running",
    "Waiting": "waiting",
}


def read_pai_2020(folder: Path) -> JobLog:
    """The jobs of `pai_job_table.csv`, with the GPUs of `pai_task_table.csv` in `folder`. Raises InputError."""
    jobs = read_table(folder / JOBS, _JOB_COLUMNS)
    tasks = read_table(folder / TASKS, _TASK_COLUMNS)
    times = Times()
    # `plan_gpu` is in hundredths of a GPU for each instance.
    gpus = pd.to_numeric(tasks["plan_gpu"], errors="coerce") * pd.to_numeric(tasks["inst_num"], errors="coerce") / 100
    by_job = pd.DataFrame(
        {"job_name": tasks["job_name"], "gpus": gpus, "started": times.seconds(tasks["start_time"], "start_time")}
    ).groupby("job_name")
    names = jobs["job_name"]
    # The start of a job in the table is its submission; it runs from the start of its first task.
    submitted, ended = (times.seconds(jobs[name], name) for name in ("start_time", "end_time"))
    started = names.map(by_job["started"].min()).to_numpy(float)
    return JobLog(
        format="PAI 2020",
        job=np.arange(len(jobs)),
        state=states(jobs["status"], _STATES, len(jobs)),
        gpus=names.map(by_job["gpus"].sum()).to_numpy(float),
        servers=np.full(len(jobs), np.nan),
        queued_s=submitted,
        started_s=started,
        run_s=ended - started,
        lacks=frozenset({"servers", "attempts"}),
        notes=tuple(times.notes),
    )
