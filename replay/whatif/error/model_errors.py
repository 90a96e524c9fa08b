"""How well changes of a kind are modelled: what their gains were off by where the truth is known.

The figures are data, `model_errors.json`, which benchmarks write (`benchmarks/model_errors.py`): shares of a step by which
the gain of a what-if was off in 19 of 20 answers, by class of job, name of term, and source.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

JobClass = Literal["gpu", "cpu", "busy", "partial"]
"""Jobs that compute on GPUs, on CPUs, on CPUs that have little time left (`BUSY_SHARE_OF_CPUS`), and those of which ranks
are missing."""

BUSY_SHARE_OF_CPUS = 0.6
"""Share of a step that the ranks' own work takes of the CPUs that they have, from which on these are busy: transfers and
codecs then take their time from that work."""

MODEL_ERRORS_FILE = Path(__file__).with_name("model_errors.json")


class ModelErrorSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where errors come from."""

    command: str
    commit: str
    """Of the code that was judged, or of the change that brought the figure."""
    seeds: str | None
    """Of what was made up; None where nothing was."""
    note: str | None


class ModelErrors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The data file."""

    min_share_of_step: dict[JobClass, float]
    """What no error is taken to be below: simulated jobs leave out what real machines do besides."""
    sources: dict[str, ModelErrorSource]
    errors: dict[JobClass, dict[str, dict[str, float]]]
    """Term -> source -> share of a step; the greatest counts. What busy CPUs have is beside what CPUs have."""

    def of(self, job: JobClass) -> dict[str, float]:
        """The share of a step that the gain of each known term may be off by."""
        of_jobs = [self.errors[job], *([self.errors["cpu"]] if job == "busy" else [])]
        shares: dict[str, float] = {}
        for by_source in of_jobs:
            for term, seen in by_source.items():
                shares[term] = max(shares.get(term, self.min_share_of_step[job]), *seen.values())
        return shares


@cache
def known_errors() -> Mapping[JobClass, Mapping[str, float]]:
    """The file's errors by class of job and term."""
    read = msgspec.json.decode(MODEL_ERRORS_FILE.read_bytes(), type=ModelErrors)
    return {job: read.of(job) for job in read.errors}


def model_error(job: JobClass, terms: Iterable[str]) -> float:
    """The share of a step by which the gain of a scenario of these terms may be off, on this class of job.

    A term that is not known has the greatest error of the class.
    """
    known = known_errors()[job]
    greatest = max(known.values())
    return float(np.sqrt(sum(known.get(term, greatest) ** 2 for term in set(terms))))
