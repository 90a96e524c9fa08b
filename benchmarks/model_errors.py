"""Writes what a benchmark found what-ifs to be off by into the file that intervals take their model errors from."""

import math
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from esprof.replay.whatif.error.model_errors import MODEL_ERRORS_FILE, JobClass, ModelErrors, ModelErrorSource

QUANTILE = 0.95
"""Share of the answers that are off by no more than a model error."""


@dataclass(frozen=True)
class CarriedOut:
    """A what-if of one term that was carried out: mean steps, all in one unit."""

    job: JobClass
    term: str
    before: float
    predicted: float
    observed: float

    @property
    def share_off(self) -> float:
        """By how much the gain is off, as a share of the step before or after, whichever is longer."""
        return abs(self.predicted - self.observed) / max(self.before, self.predicted)


def term_of(scenario: str) -> str:
    """The name of a scenario's only term."""
    return re.split(r"[\[=]", scenario.split(".", 1)[-1] if scenario.startswith("rank") else scenario)[0]


def write_carried_out(source: str, command: str, answers: Iterable[CarriedOut], file: Path = MODEL_ERRORS_FILE) -> None:
    """Write the model errors of what-ifs that were carried out on real jobs; these have no seeds."""
    shares: dict[tuple[JobClass, str], list[float]] = defaultdict(list)
    for one in answers:
        shares[one.job, one.term].append(one.share_off)
    write(source, command, None, {key: of_answers(off) for key, off in shares.items()}, file)


def of_answers(shares: Sequence[float]) -> float:
    """The model error of answers that were off by these shares of a step."""
    return float(np.quantile(shares, QUANTILE))


def write(
    source: str,
    command: str,
    seeds: str | None,
    found: Mapping[tuple[JobClass, str], float],
    file: Path = MODEL_ERRORS_FILE,
) -> None:
    """Put what a source `found` by class of job and term, shares of a step, in the place of all that the file has of it.

    Shares are rounded up to two decimals. What other sources say stays: of several the greatest counts.
    """
    known = msgspec.json.decode(file.read_bytes(), type=ModelErrors)
    errors = {
        job: {term: {name: share for name, share in of.items() if name != source} for term, of in terms.items()}
        for job, terms in known.errors.items()
    }
    for (job, term), share in found.items():
        errors[job].setdefault(term, {})[source] = math.ceil(round(100 * share, 6)) / 100
    left = {job: {term: of for term, of in sorted(terms.items()) if of} for job, terms in errors.items()}
    origin = ModelErrorSource(command=command, commit=_commit(), seeds=seeds, note=None)
    # A source that nothing comes from any more says nothing.
    used = {name for terms in left.values() for of in terms.values() for name in of}
    sources = {name: one for name, one in (known.sources | {source: origin}).items() if name in used}
    changed = msgspec.structs.replace(known, sources=sources, errors=left)
    file.write_bytes(msgspec.json.format(msgspec.json.encode(changed), indent=2) + b"\n")


def _commit() -> str:
    asked = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
