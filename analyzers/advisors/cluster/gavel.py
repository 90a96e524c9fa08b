"""Gavel's published throughputs (`simulation_throughputs.json`), for jobs with one of its workloads.

The file has steps per second by type of device, then by job and its number of devices, as in
`('ResNet-50 (batch size 64)', 2)`, then by job that shares every device: `null` for none, else the steps of both jobs. 0
means that the job does not run.
"""

import re
from pathlib import Path

import msgspec

from esprof.analyzers.advisors.cluster.mix import SharingJob, Together, read
from esprof.core.errors import InputError

_KEY = re.compile(r"\('(?P<workload>[^']+)', (?P<devices>\d{1,4})\)")
_ALONE = "null"

_Table = dict[str, dict[str, dict[str, float | tuple[float, float]]]]


def with_throughputs(jobs: tuple[SharingJob, ...], path: Path) -> tuple[SharingJob, ...]:
    """`jobs` with missing throughputs filled in from the file. Raises InputError if the file lacks a job."""
    table = read(path, _Table)
    return tuple(job if job.throughput_steps_per_s else _filled(job, table, path) for job in jobs)


def _filled(job: SharingJob, table: _Table, path: Path) -> SharingJob:
    key = f"('{job.workload}', {job.scale_factor})"
    rows = {kind: jobs[key] for kind, jobs in table.items() if key in jobs}
    if not rows:
        raise InputError(f"has no throughputs of {job.workload!r} on {job.scale_factor} devices", path=path)
    alone: dict[str, float] = {}
    pairs: dict[str, dict[str, tuple[float, float]]] = {}
    for kind, row in rows.items():
        for other, rate in row.items():
            if other == _ALONE and not isinstance(rate, tuple):
                alone[kind] = rate
            elif isinstance(rate, tuple) and all(rate) and (workload := _workload(other, job.scale_factor)):
                pairs.setdefault(workload, {})[kind] = rate
    together = tuple(Together(with_=other, throughput_steps_per_s=rates) for other, rates in sorted(pairs.items()))
    return msgspec.structs.replace(job, throughput_steps_per_s=alone, together=together)


def _workload(key: str, devices: int) -> str | None:
    """The workload of a job on `devices` devices; None for another number."""
    match = _KEY.fullmatch(key)
    return match["workload"] if match and int(match["devices"]) == devices else None
