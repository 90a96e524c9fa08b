"""Writes what a benchmark found what-ifs to be off by into the file that intervals take their model errors from."""

import math
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from esprof.replay.whatif.error.model_errors import MODEL_ERRORS_FILE, JobClass, ModelErrors, ModelErrorSource

QUANTILE = 0.95
"""Share of the answers that are off by no more than a model error."""


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
    told = ModelErrorSource(command=command, commit=_commit(), seeds=seeds)
    # A source that nothing comes from any more says nothing.
    used = {name for terms in left.values() for of in terms.values() for name in of}
    sources = {name: one for name, one in (known.sources | {source: told}).items() if name in used}
    changed = msgspec.structs.replace(known, sources=sources, errors=left)
    file.write_bytes(msgspec.json.format(msgspec.json.encode(changed), indent=2) + b"\n")


def _commit() -> str:
    asked = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
