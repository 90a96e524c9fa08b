"""From files to an answer on several jobs, and from a stored answer to its verification."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import msgspec

from esprof.analyzers.advisors.cluster.mix import read
from esprof.analyzers.advisors.cluster.questions.answer import (
    CheckedAnswer,
    ClusterAnswer,
    ClusterProblem,
    OnDevices,
    Question,
)
from esprof.analyzers.advisors.cluster.questions.giving_back import (
    ReclaimAnswer,
    ReclaimProblem,
    check_reclaim,
    give_back,
)
from esprof.analyzers.advisors.cluster.questions.prices import read_spot
from esprof.analyzers.advisors.cluster.questions.proposals import (
    ProposalsAnswer,
    ProposalsProblem,
    check_proposals,
    propose,
)
from esprof.analyzers.advisors.cluster.questions.sizes import SizesAnswer, SizesProblem, check_sizes, sizes
from esprof.analyzers.advisors.cluster.questions.slices import (
    SlicesAnswer,
    SlicesProblem,
    check_slices,
    cut_devices,
)
from esprof.analyzers.advisors.cluster.questions.spot import SpotAnswer, check_spot, choose_offers
from esprof.analyzers.advisors.job.growth import Inventory
from esprof.core.errors import InputError, MismatchError, UsageError


@dataclass(frozen=True)
class _Way:
    """How a question is read, answered and verified."""

    read: Callable[[Path], ClusterProblem]
    answer: type[ClusterAnswer]
    solve: Callable[[Any], ClusterAnswer]
    check: Callable[[Any], CheckedAnswer]


_PAGE = "docs/how-to/clusters.md"

_WAYS: dict[Question, _Way] = {
    "sizes": _Way(lambda path: read(path, SizesProblem, _PAGE), SizesAnswer, sizes, check_sizes),
    "reclaim": _Way(lambda path: read(path, ReclaimProblem, _PAGE), ReclaimAnswer, give_back, check_reclaim),
    "slices": _Way(lambda path: read(path, SlicesProblem, _PAGE), SlicesAnswer, cut_devices, check_slices),
    "spot": _Way(lambda path: read_spot(path, _PAGE), SpotAnswer, choose_offers, check_spot),
    "proposals": _Way(lambda path: read(path, ProposalsProblem, _PAGE), ProposalsAnswer, propose, check_proposals),
}

QUESTIONS = tuple(_WAYS)

ANSWERS = tuple(way.answer for way in _WAYS.values())


def is_question(objective: str | None) -> TypeGuard[Question]:
    """Whether the objective is one of `QUESTIONS`."""
    return objective in QUESTIONS


def ask(question: Question, jobs: Path, inventory: Inventory | None) -> ClusterAnswer:
    """Answer the question on the jobs in a file, on the devices of `inventory` or else those in the file.

    Raises InputError if the file is invalid, and UsageError if the devices are missing or not asked for.
    """
    way = _WAYS[question]
    problem = way.read(jobs)
    if isinstance(problem, OnDevices):
        if inventory is not None and (inventory.max_devices is not None or inventory.single_type):
            raise UsageError(f"--objective {question} does not know max_devices and single_type of --inventory")
        if inventory is not None:
            problem = msgspec.structs.replace(problem, cluster=inventory.devices)
        if not problem.cluster:
            raise UsageError(f"{jobs} names no devices", remedy="Pass --inventory, or add `cluster:` to the file.")
    elif inventory is not None:
        raise UsageError(f"--objective {question} takes no --inventory")
    if fault := problem.fault():
        raise InputError(fault, path=jobs, remedy=f"{_PAGE} shows the format.")
    return way.solve(problem)


def verify(raw: bytes, question: Question) -> CheckedAnswer:
    """Decode a stored answer and verify it. Raises msgspec.MsgspecError, and MismatchError if it is wrong."""
    answer: Any = msgspec.json.decode(raw, type=_WAYS[question].answer)
    if fault := answer.problem.fault():
        raise MismatchError(f"the problem in the answer is invalid: {fault}")
    return _WAYS[question].check(answer)
