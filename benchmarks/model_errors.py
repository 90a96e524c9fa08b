"""Writes what a benchmark found what-ifs to be off by into the file that intervals take their model errors from."""

import math
import re
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

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
    def gained(self) -> float:
        """What was gained, as a share of what was predicted."""
        return (self.before - self.observed) / (self.before - self.predicted)

    @property
    def share_off(self) -> float:
        """By how much the gain is off, as a share of the step before or after, whichever is longer."""
        return abs(self.share_beyond)

    @property
    def share_beyond(self) -> float:
        """What was gained beyond the prediction, as a share of the same; negative if less was gained."""
        return (self.predicted - self.observed) / max(self.before, self.predicted)


Figure = Callable[[CarriedOut], float]


def term_of(scenario: str) -> str:
    """The name of a scenario's only term."""
    return re.split(r"[\[=]", scenario.split(".", 1)[-1] if scenario.startswith("rank") else scenario)[0]


def write_carried_out(source: str, command: str, answers: Iterable[CarriedOut], file: Path = MODEL_ERRORS_FILE) -> None:
    """Write the model errors of what-ifs that were carried out on real jobs; these have no seeds."""
    write(source, command, None, _by_job_and_term(answers, lambda one: one.share_off), file)


def write_planted(
    source: str, command: str, seeds: str, answers: Iterable[CarriedOut], file: Path = MODEL_ERRORS_FILE
) -> None:
    """Write what the prices of planted faults were off by: too high as model errors, too low as underestimates."""
    found = [*answers]
    above = _by_job_and_term(found, lambda one: max(0.0, -one.share_beyond))
    below = _by_job_and_term(found, lambda one: max(0.0, one.share_beyond))
    too_high = {key: share for key, share in above.items() if share}
    too_low = {term: share for (_, term), share in below.items() if share}
    write(source, command, seeds, too_high, file, too_low)


def _by_job_and_term(answers: Iterable[CarriedOut], figure: Figure) -> dict[tuple[JobClass, str], float]:
    figures: dict[tuple[JobClass, str], list[float]] = defaultdict(list)
    for one in answers:
        figures[one.job, one.term].append(figure(one))
    return {key: of_answers(some) for key, some in figures.items()}


def of_answers(shares: Sequence[float]) -> float:
    """The model error of answers that were off by these shares of a step."""
    return float(np.quantile(shares, QUANTILE))


def write(
    source: str,
    command: str,
    seeds: str | None,
    found: Mapping[tuple[JobClass, str], float],
    file: Path = MODEL_ERRORS_FILE,
    underestimates: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Put what a source `found` by class of job and term, shares of a step, in the place of all that the file has of it.

    Shares are rounded up to two decimals. What other sources say stays: of several the greatest counts.
    """
    known = msgspec.json.decode(file.read_bytes(), type=ModelErrors)
    errors = {
        job: _with(terms, source, {term: _up(share) for (of, term), share in found.items() if of == job})
        for job, terms in known.errors.items()
    }
    beyond = _with(known.underestimates, source, {term: _up(share) for term, share in underestimates.items()})
    origin = ModelErrorSource(command=command, commit=_commit(), seeds=seeds, note=None)
    # A source that nothing comes from any more says nothing.
    used = {name for terms in (*errors.values(), beyond) for of in terms.values() for name in of}
    sources = {name: one for name, one in (known.sources | {source: origin}).items() if name in used}
    changed = msgspec.structs.replace(known, sources=sources, errors=errors, underestimates=beyond)
    file.write_bytes(msgspec.json.format(msgspec.json.encode(changed), indent=2) + b"\n")


def _with(
    terms: Mapping[str, Mapping[str, float]], source: str, found: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    """The figures by term and source, those of `source` replaced by those `found`."""
    figures = {term: {name: one for name, one in of.items() if name != source} for term, of in terms.items()}
    for term, figure in found.items():
        figures.setdefault(term, {})[source] = figure
    return {term: of for term, of in sorted(figures.items()) if of}


def _up(share: float) -> float:
    """Rounded up to two decimals."""
    return math.ceil(round(100 * share, 6)) / 100


def _commit() -> str:
    asked = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
