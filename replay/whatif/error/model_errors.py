"""Errors of the model by kind of change: errors of predicted gains in jobs whose true gains are known.

The figures are data in `model_errors.json`, written by `benchmarks/model_errors.py`: the error of a what-if's gain, as a
share of a step, that 19 of 20 answers do not exceed, by class of job, name of term, and source. Faults that were planted in
real jobs cost more than predicted rather than less: by how much is a figure of its own.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

JobClass = Literal["gpu", "cpu", "busy", "partial"]
"""Jobs that compute on GPUs, on CPUs, on busy CPUs (`BUSY_SHARE_OF_CPUS`), and jobs with missing ranks."""

BUSY_SHARE_OF_CPUS = 0.6
"""Utilization of the ranks' CPUs by the ranks' own work from which on they count as busy: communication and codecs then take
CPU time from that work."""

MODEL_ERRORS_FILE = Path(__file__).with_name("model_errors.json")


class ModelErrorSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Origin of errors."""

    command: str
    commit: str
    """Commit of the judged code, or of the change that added the figure."""
    seeds: str | None
    """Seeds of the simulated jobs; None for real ones."""
    note: str | None


class ModelErrors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The data file. All tables are term -> source -> figure."""

    min_share_of_step: dict[JobClass, float]
    """Lower bound of every error: simulated jobs do not model all effects of real machines."""
    sources: dict[str, ModelErrorSource]
    errors: dict[JobClass, dict[str, dict[str, float]]]
    """Shares of a step; the maximum counts. Errors of busy CPUs are in addition to those of CPUs."""
    underestimates: dict[str, dict[str, float]]
    """What was gained beyond the prediction on CPUs, as a share of a step; the maximum counts."""

    def of(self, job: JobClass) -> dict[str, float]:
        """Error of the gain of each known term, as a share of a step."""
        of_jobs = [self.errors[job], *([self.errors["cpu"]] if job == "busy" else [])]
        shares: dict[str, float] = {}
        for by_source in of_jobs:
            for term, seen in by_source.items():
                shares[term] = max(shares.get(term, self.min_share_of_step[job]), *seen.values())
        return shares


@cache
def known_errors() -> Mapping[JobClass, Mapping[str, float]]:
    """The file's errors by class of job and term."""
    read = _read()
    return {job: read.of(job) for job in read.errors}


@cache
def known_underestimates() -> Mapping[str, float]:
    """The file's underestimates by term."""
    return {term: max(of.values()) for term, of in _read().underestimates.items()}


def _read() -> ModelErrors:
    return msgspec.json.decode(MODEL_ERRORS_FILE.read_bytes(), type=ModelErrors)


def model_error(job: JobClass, terms: Iterable[str]) -> float:
    """Error of the gain of a scenario of these terms on this class of job, as a share of a step.

    An unknown term gets the error that 19 of 20 terms of the class do not exceed.
    """
    known = known_errors()[job]
    of_others = float(np.quantile([*known.values()], 0.95, method="higher"))
    return float(np.sqrt(sum(known.get(term, of_others) ** 2 for term in set(terms))))


def underestimate(job: JobClass, terms: Iterable[str]) -> float:
    """What a scenario of these terms may gain beyond its prediction on this class of job, as a share of a step: no less than
    `model_error`."""
    terms = {*terms}
    known = known_underestimates() if job in ("cpu", "busy") else {}
    return max(model_error(job, terms), float(np.sqrt(sum(known.get(term, 0.0) ** 2 for term in terms))))
