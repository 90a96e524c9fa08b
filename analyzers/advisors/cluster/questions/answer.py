"""What all answers to questions on several jobs have in common, and the result of their verification."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from esprof.analyzers.advisors.cluster.mix import DeviceType, JobId
from esprof.analyzers.advisors.job.growth import Inventory, Model
from esprof.core.errors import MismatchError

Question = Literal["sizes", "reclaim", "slices", "spot", "proposals"]
"""Values of `--objective` whose answers are whole devices, servers, slices or hours."""

_MAX_ROUNDING = 1e-6
"""Relative difference up to which two sums of the same terms are equal."""


class NamedJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job of a file. Subclasses add what the question needs."""

    id: int | str

    @property
    def name(self) -> JobId:
        return str(self.id)


class ClusterProblem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an answer is about: the content of the file of jobs."""

    def fault(self) -> str | None:
        """Why the problem is invalid; None if it is valid."""
        raise NotImplementedError


class OnDevices(ClusterProblem, frozen=True, kw_only=True):
    """A problem about the devices of a cluster."""

    cluster: dict[DeviceType, int | Model] = {}
    """Devices by type: of the file, or else of --inventory."""

    @property
    def counts(self) -> dict[DeviceType, int]:
        return Inventory(devices=self.cluster).counts

    def fault_of_lists(self, jobs: Sequence[NamedJob]) -> str | None:
        """Why the jobs or the devices are invalid, whatever is asked; None if they are valid."""
        if not jobs or len({job.name for job in jobs}) < len(jobs):
            return "needs at least one job, and no job twice"
        if min(self.counts.values(), default=0) < 1:
            return "every type of the cluster needs at least one device"
        return None


class ClusterAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer on several jobs. Subclasses add the question (`objective`), the `problem` and the `decision`."""

    schema: Literal["esprof.advice/1"] = "esprof.advice/1"
    value: float
    """Value of the decision, in `unit`."""
    unit: str
    bound: float
    """No decision has a better value than this."""
    baselines: dict[str, float]
    """Value of other decisions."""
    warnings: tuple[str, ...] = ()
    not_modelled: tuple[str, ...]


@dataclass(frozen=True)
class CheckedAnswer:
    """A decision that is as stated, and a bound on all decisions that was found in another way than the decision."""

    bound: float
    gap: float
    """Distance of the value from the bound, relative."""
    how: str


def verified(answer: ClusterAnswer, value: float, bound: float, how: str, *, most: bool = False) -> CheckedAnswer:
    """Compare the stated value with the decision's `value` and the `bound` of all decisions: lower, or upper for `most`.

    Raises MismatchError if the value is not as stated, or if the bound shows that the stated bound is wrong.
    """
    scale = max(abs(value), abs(bound), 1.0)
    if not abs(value - answer.value) <= _MAX_ROUNDING * scale:
        raise MismatchError(f"the answer states the value {answer.value:.10g}, but it is {value:.10g}")
    beyond = value - bound if most else bound - value
    if beyond > _MAX_ROUNDING * scale:
        raise MismatchError(f"the value {value:.10g} is better than the bound {bound:.10g}: the decision is impossible")
    claimed = abs(answer.bound - answer.value)
    if -beyond > claimed + _MAX_ROUNDING * scale:
        raise MismatchError(f"the answer states the bound {answer.bound:.10g}, but {bound:.10g} may be possible")
    return CheckedAnswer(bound, max(0.0, -beyond) / scale, how)
