"""The EST steps of a step that run again: all of a rank's in reverse order, or a single one on another rank."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Protocol

from esprof.core.assignment import Est
from esprof.elastic.data.loaders import EstLoader
from esprof.elastic.proof.schedule import ProofTurn
from esprof.elastic.runtime.agree import digest, gather_values, together
from esprof.elastic.runtime.context import EstContext, broadcast_context
from esprof.elastic.runtime.training import TrainingState
from esprof.elastic.runtime.transport import Transport
from esprof.elastic.verify.second_run import FirstRun, attributes, different, require_equal

RunAgain = Callable[[FirstRun], dict[str, str]]
"""Runs an EST step again. Returns hashes of its batches and results, by name."""

Doubts = Callable[[int], AbstractContextManager[None]]
"""A context for checks of a step: what they raise stops the job, or is a warning."""

_MAX_NAMES = 5
"""Most attributes that a message lists."""


class Reruns(Protocol):
    """The EST steps that run again in one step. All ranks make the same calls."""

    size: int
    """How many numbers the ranks add up, with the losses of the step, for `judge`."""

    def begin(self) -> None:
        """Called before the first EST step."""

    def first_run(self, est: Est) -> FirstRun | None:
        """Where the first run of an EST of this rank is noted; None if it does not run again."""

    def run(self, again: RunAgain) -> list[float]:
        """Run EST steps `again`, after all of this rank have run once. Returns this rank's summands."""

    def judge(self, numbers: Sequence[float]) -> None:
        """Raise UsageError on all ranks if the added `numbers` say that a run had other results."""


@dataclass
class EveryTurn:
    """All EST steps of this rank run again, in reverse order, then the first one of the next rank.

    State that an EST leaves behind, other than what the trainer switches, makes the bits depend on which ESTs share a
    process. EST steps that run again in reverse order find it as another EST has left it.
    """

    step: int
    state: TrainingState
    transport: Transport
    goes_round: bool
    """Whether another rank has to compute the same bits, and can."""
    doubts: Doubts
    size: int = 0

    def begin(self) -> None:
        self._runs = {est: _first_run(est, context) for est, context in sorted(self.state.contexts.items())}
        self._before = attributes(self.state.model)

    def first_run(self, est: Est) -> FirstRun | None:
        return self._runs[est]

    def run(self, again: RunAgain) -> list[float]:
        with self.doubts(self.step):
            self._check(again)
        return []

    def judge(self, numbers: Sequence[float]) -> None: ...

    def _check(self, again: RunAgain) -> None:
        rank, world, runs = self.transport.rank, self.transport.world, list(self._runs.values())
        with together(self.transport):
            for first_run in reversed(runs):
                found = again(first_run)
                changed = different(self._before, attributes(self.state.model))
                first_run.compare(
                    f"when step {self.step} was run a second time", found, _listed("changed since", changed)
                )
        if world == 1 or not self.goes_round:
            return
        owner = (rank + 1) % world
        description = gather_values(self.transport, [first_run.description() for first_run in runs[:1]])
        with together(self.transport):
            for guest in map(FirstRun.of_description, description[owner]):
                guest.compare(_elsewhere(self.step, owner, rank), again(guest))


@dataclass
class OneTurn:
    """A single EST step runs again, as a guest on another rank, after those of that rank.

    There it finds what another process has become: its hidden state, its files, its clock.
    """

    step: int
    turn: ProofTurn
    state: TrainingState
    transport: Transport
    size: int = 2
    _again: dict[str, str] = field(default_factory=dict)

    def begin(self) -> None:
        turn = self.turn
        context = self.state.contexts.get(turn.est)
        if turn.guest != turn.owner:
            start = _start_of(context) if context is not None else None
            context = broadcast_context(start, turn.owner, self.transport, self.state.device)
        self._first = _first_run(turn.est, context) if context is not None else None

    def first_run(self, est: Est) -> FirstRun | None:
        return self._first if est == self.turn.est else None

    def run(self, again: RunAgain) -> list[float]:
        found = self._first.found if self._first is not None else {}
        if self.transport.rank == self.turn.guest:
            assert self._first is not None
            self._again = again(self._first)
        ranks = ((self.turn.owner, found), (self.turn.guest, self._again))
        return [digest(sorted(of.items())) if self.transport.rank == rank else 0.0 for rank, of in ranks]

    def judge(self, numbers: Sequence[float]) -> None:
        first, again = numbers
        if first == again:
            return
        est, owner, guest = self.turn.est, self.turn.owner, self.turn.guest
        own = self._first.found if self._first is not None else {}
        ranks = gather_values(self.transport, (own, self._again, attributes(self.state.model)))
        where, hint = f"when rank {owner} ran it a second time in step {self.step}", ""
        if owner != guest:
            apart = different(ranks[owner][2], ranks[guest][2])
            where, hint = _elsewhere(self.step, owner, guest), _listed("differing between these ranks", apart)
        require_equal(est, ranks[owner][0], where, ranks[guest][1], hint)


def _first_run(est: Est, context: EstContext) -> FirstRun:
    return FirstRun(est, context.rng, values=dict(context.values))


def _start_of(context: EstContext) -> EstContext:
    """What another rank needs to run the next step of an EST."""
    return replace(context, codec={}, loader=EstLoader())


def _elsewhere(step: int, owner: int, guest: int) -> str:
    return f"when rank {guest} ran it in step {step} than when rank {owner} did"


def _listed(what: str, names: Sequence[str]) -> str:
    return f"; {what}: {', '.join(names[:_MAX_NAMES])}" if names else ""
