"""Jobs that share devices, with their measured throughputs: the input of the policies."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from esprof.core.disk import read_given
from esprof.core.errors import InputError, UsageError
from esprof.core.types import NOT_DECODED

JobId = str
DeviceType = str

T = TypeVar("T")

_MAX_YAML_VALUES = 1_000_000

PerSecond = float
"""Training steps per second of all workers of a job that runs all the time."""


class Together(msgspec.Struct, frozen=True, kw_only=True):
    """Throughputs of a job that shares each of its devices with a job of another workload."""

    with_: str = msgspec.field(name="with")
    """Workload of the other job."""
    throughput_steps_per_s: dict[DeviceType, tuple[PerSecond, PerSecond]]
    """(this job, the other job), by type of device; 0 if the two do not fit on a device."""


class SharingJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job with its measured throughput on each type of device. It cannot use a type that is missing or has 0."""

    id: int | str
    workload: str = ""
    scale_factor: int = 1
    """Number of devices that it uses at once, all of one type."""
    weight: float = 1.0
    steps: float | None = None
    """Remaining steps."""
    deadline_s: float | None = None
    entity: str = ""
    """Team of the job, for fairness among teams."""
    throughput_steps_per_s: dict[DeviceType, PerSecond] = {}
    together: tuple[Together, ...] = ()

    @property
    def name(self) -> JobId:
        return str(self.id)


class Mix(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of a cluster by type, and the jobs that share them."""

    cluster: dict[DeviceType, int]
    jobs: tuple[SharingJob, ...]
    entities: dict[str, float] = {}
    """Weight of each team; 1 by default."""


class _Listed(msgspec.Struct, frozen=True):
    """A file of jobs; another file may define the devices."""

    jobs: tuple[SharingJob, ...]
    cluster: dict[DeviceType, int] | None = None
    entities: dict[str, float] = {}


def read_mix(
    path: Path,
    cluster: dict[DeviceType, int] | None = None,
    filled: Callable[[tuple[SharingJob, ...]], tuple[SharingJob, ...]] = lambda jobs: jobs,
) -> Mix:
    """Read the jobs of a YAML or JSON file, on the devices `cluster` or else those in the file. `filled` adds throughputs
    that the file omits.

    Raises InputError with the violated constraint if the file is invalid or a job cannot run, and UsageError if neither
    defines devices.
    """
    listed = read(path, _Listed)
    devices = cluster if cluster is not None else listed.cluster
    if devices is None:
        raise UsageError(f"{path} names no devices", remedy="Pass --inventory, or add `cluster:` to the file.")
    mix = Mix(cluster=devices, jobs=filled(listed.jobs), entities=listed.entities)
    if fault := _fault(mix):
        raise InputError(fault, path=path)
    return mix


def read(path: Path, kind: type[T], page: str = "docs/how-to/advisors.md") -> T:
    """Read a YAML or JSON file as `kind`. Raises InputError if it does not match, with the page that shows the format."""
    raw = read_given(path, "YAML or JSON")
    try:
        # The YAML parser accepts JSON, but takes a hundred times as long.
        return msgspec.json.decode(raw, type=kind) if path.suffix == ".json" else msgspec.convert(_yaml(raw), kind)
    except NOT_DECODED as error:
        raise InputError(str(error), path=path, remedy=f"{page} shows the format.") from error


def _yaml(raw: bytes) -> Any:
    """The content of a YAML file. Raises msgspec.DecodeError if it is invalid, or very large with its aliases replaced."""
    try:
        content = msgspec.yaml.decode(raw)
    except Exception as error:  # Odd numbers and dates can make PyYAML raise almost anything.
        raise msgspec.DecodeError(str(error)) from error
    count, rest = 0, [content]
    while rest:
        one = rest.pop()
        inner = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        count += len(inner)
        if count > _MAX_YAML_VALUES:
            raise msgspec.DecodeError(f"holds more than {_MAX_YAML_VALUES:,} values")
        rest += inner
    return content


def _fault(mix: Mix) -> str | None:
    """Reason why these jobs cannot share these devices; None if they can."""
    if not mix.jobs:
        return "lists no job"
    names = [job.name for job in mix.jobs]
    if len(set(names)) < len(names):
        return f"lists job {next(name for name in names if names.count(name) > 1)} twice"
    for kind, count in mix.cluster.items():
        if count < 1:
            return f"the cluster has {count} devices of type {kind}: at least 1 is needed"
    return next((fault for job in mix.jobs if (fault := _fault_of(job, mix))), None)


def _fault_of(job: SharingJob, mix: Mix) -> str | None:
    numbers = [*job.throughput_steps_per_s.values(), job.weight, job.steps or 0, job.deadline_s or 0]
    numbers += [rate for pair in job.together for rates in pair.throughput_steps_per_s.values() for rate in rates]
    if not all(0 <= number < float("inf") for number in numbers):
        return f"job {job.name} has a number that is negative or not finite"
    if job.scale_factor < 1 or not job.weight:
        return f"job {job.name} needs a scale_factor of at least 1 and a weight above 0"
    usable = [kind for kind, rate in job.throughput_steps_per_s.items() if rate and kind in mix.cluster]
    if not usable:
        return f"job {job.name} has no throughput on any type of the cluster ({', '.join(mix.cluster)})"
    if all(mix.cluster[kind] < job.scale_factor for kind in usable):
        most = max(mix.cluster[kind] for kind in usable)
        return f"job {job.name} needs {job.scale_factor} devices of one type: at most {most} of a usable type exist"
    return None
