"""Which steps of a job are proofs, and which EST another rank then runs again.

A function of the step, the assignment and the options alone, so that all ranks know without a word.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from math import gcd

from esprof.core.assignment import Assignment, Est
from esprof.core.types import Rank

_TURNS_BETWEEN_PROOFS = 150
"""EST steps of the fullest rank from one proof to the next. A proof is one more, and its hashes take up to half of one where
batches are small (`proof_pct` of benchmarks/elastic.py): at most 1 % of the time."""

_STEPS_VERIFIED_AT_START = 2
"""State that an EST leaves behind in one step may only take effect in the next."""


@dataclass(frozen=True)
class ProofTurn:
    """An EST step that two ranks run, or one rank twice."""

    est: Est
    owner: Rank
    guest: Rank
    """The rank that runs it again; the owner itself where no other rank can."""


@dataclass(frozen=True)
class ProofSchedule:
    """The proofs of a job. One after the other, each EST runs again, on each other rank, with each loss of the job."""

    prove_every: int | None
    """`Proof.prove_every`."""
    first_step: int
    """The step with which this process has started."""
    losses: int
    """Number of losses that alternate from step to step."""
    steps_per_epoch: int
    across_ranks: bool
    """Whether another rank has to compute the same bits, and can."""

    def period(self, assignment: Assignment) -> int | None:
        """Steps from one proof to the next; None if there are none.

        It has no factor in common with what alternates, so that proofs do not always meet the same loss. A period by default
        does not always meet the same steps of an epoch either.
        """
        if self.prove_every is not None:
            return _first_coprime(range(self.prove_every, 0, -1), self.losses)
        least = -(-_TURNS_BETWEEN_PROOFS // max(map(len, assignment.ests)))
        return _first_coprime(count(least), self.losses * self.steps_per_epoch)

    def is_whole(self, step: int) -> bool:
        """Whether all ESTs run again in this step: in the first steps of a process."""
        return self.prove_every != 0 and step < self.first_step + _STEPS_VERIFIED_AT_START

    def turn(self, step: int, assignment: Assignment) -> ProofTurn | None:
        """The EST step that runs again in this step; None if it is no proof."""
        period = self.period(assignment)
        if period is None or step % period:
            return None
        number, world = step // period // self.losses, assignment.world
        est = number % assignment.n_est
        owner = assignment.owner(est)
        if world == 1 or not self.across_ranks:
            return ProofTurn(est, owner, owner)
        return ProofTurn(est, owner, (owner + 1 + number // assignment.n_est % (world - 1)) % world)


def _first_coprime(numbers: Iterable[int], other: int) -> int | None:
    """The first number that has no factor in common with the other one; None if there is none."""
    return next((number for number in numbers if gcd(number, other) == 1), None)
