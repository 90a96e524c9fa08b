"""The changes that are predicted and then made, and the jobs that they are made on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules

from benchmarks.loaders.kit import DEVICE

OWN, OTHER = "benchmarks.loaders.jobs", "benchmarks.jobs.loaders_other"
"""Packages of jobs: by the author of the rules and of this benchmark, and by one who has read nothing but the kit."""

STEPS = 160
"""Steps of a run of a job. The first ones, which read all files once, do not count."""


JOBS, SHARED = "jobs", "folder"
"""The option of the driver that says how many equal jobs run side by side; and the value for a new folder of theirs."""


@dataclass(frozen=True)
class Change:
    """A change of a job's options; `before` are those that differ from the kit's defaults."""

    name: str
    what_if: str
    after: Mapping[str, str]
    before: Mapping[str, str] = field(default_factory=dict)

    @property
    def options(self) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """The options without and with the change."""
        return self.before, {**self.before, **self.after}


CHANGES = (
    Change("workers 0 → 1", "loader.workers=1", {"workers": "1"}, {"workers": "0"}),
    Change("workers 1 → 2", "loader.workers=2", {"workers": "2"}),
    Change("workers 2 → 4", "loader.workers=4", {"workers": "4"}, {"workers": "2"}),
    Change("store ×4", "storage=4x", {"store": "4"}),
    Change("cache 50 %", "cache=0.5", {"cached": "0.5"}),
    # A term of loaders, here with the present number of workers, replays them for the steps of the faster device.
    Change(
        "device ×2",
        f"kernel[{DEVICE}]=2x,loader.workers=2",
        {"device-ms": "20"},
        {"workers": "2", "device-ms": "40"},
    ),
    Change("prefetch 1 → 4", "loader.prefetch=4", {"prefetch": "4"}, {"workers": "2", "prefetch": "1"}),
    Change("MinIOCache of 75 %", "cache[minio]=0.75", {"minio": "0.75"}),
    Change("half the samples cached", "cache[samples]=0.5", {"ready": "0.5"}),
    Change(
        "any order",
        "loader.in_order=0",
        {"in-order": "0"},
        {"workers": "2", "slow-ms": "100", "device-ms": "40"},
    ),
    Change("shared by two jobs", "loader.shared=2", {"shared": SHARED}, {JOBS: "2"}),
)


def jobs() -> Sequence[str]:
    """The modules of all jobs."""
    return [*_modules(OWN), *(_modules(OTHER) if find_spec(OTHER) else ())]


def _modules(package: str) -> Iterator[str]:
    return (f"{package}.{one.name}" for one in iter_modules(import_module(package).__path__))
