"""The EST steps of a step that run again: all of a rank's in reverse order, or a single one on another rank."""

import sys
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
from esprof.elastic.verify.second_run import VALUE, FirstRun, attributes, different, refuse

RunAgain = Callable[[FirstRun], dict[str, str]]
"""Runs an EST step again. Returns hashes of its batches and results, by name."""

Doubts = Callable[[int], AbstractContextManager[None]]
"""A context for checks of a step: what they raise stops the job, or is a warning."""

_MAX_NAMES = 5
"""Most names of attributes and values that a message lists."""


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
        self._starts = {est: _start_of(context) for est, context in sorted(self.state.contexts.items())}
        self._runs = {est: _first_run(est, start) for est, start in self._starts.items()}
        self._before = _hidden(self.state)

    def first_run(self, est: Est) -> FirstRun | None:
        return self._runs[est]

    def run(self, again: RunAgain) -> list[float]:
        with self.doubts(self.step):
            self._run_here(again)
            if self.goes_round and self.transport.world > 1:
                self._run_elsewhere(again)
        return []

    def judge(self, numbers: Sequence[float]) -> None: ...

    def _run_here(self, again: RunAgain) -> None:
        """Run all ESTs again. What they leave in a value may be another one, such as a time: a job may only log it."""
        values: set[str] = set()
        with together(self.transport):
            for first_run in reversed(self._runs.values()):
                differ = different(first_run.found, again(first_run))
                values.update(name for name in differ if name.startswith(VALUE))
                if results := [name for name in differ if not name.startswith(VALUE)]:
                    hint = _listed("changed since", _apart(self._before, _hidden(self.state), self.state))
                    refuse(first_run.est, results, f"when step {self.step} was run a second time", hint)
        self._leave_out(set[str]().union(*gather_values(self.transport, sorted(values))))

    def _leave_out(self, values: set[str]) -> None:
        """Let no proof compare these values, and say so."""
        unsteady = self.state.proof.unsteady
        if (new := values - unsteady) and self.transport.rank == 0:
            names = _some([name.removeprefix(VALUE) for name in sorted(new)])
            sys.stderr.write(f"esprof: proofs leave out {names}: an EST step that ran again left another value there\n")
        unsteady |= new

    def _run_elsewhere(self, again: RunAgain) -> None:
        """Run the first EST of the next rank."""
        owner = (self.transport.rank + 1) % self.transport.world
        guest: FirstRun | None = None
        everyone = gather_values(self.transport, [(est, run.found) for est, run in self._runs.items()][:1])
        for source, firsts in enumerate(everyone):
            for est, found in firsts:
                start = broadcast_context(self._starts.get(est), source, self.transport, self.state.device)
                if source == owner:
                    guest = replace(_first_run(est, start), found=found)
        with together(self.transport):
            if guest is not None:
                first, found = (_steady(of, self.state) for of in (guest.found, again(guest)))
                refuse(guest.est, different(first, found), _elsewhere(self.step, owner, self.transport.rank))


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
        start = _start_of(context) if context is not None else None
        if turn.guest != turn.owner:
            start = broadcast_context(start, turn.owner, self.transport, self.state.device)
        self._first = _first_run(turn.est, start) if start is not None else None

    def first_run(self, est: Est) -> FirstRun | None:
        return self._first if est == self.turn.est else None

    def run(self, again: RunAgain) -> list[float]:
        if self.transport.rank == self.turn.guest:
            assert self._first is not None
            self._again = _steady(again(self._first), self.state)
        ranks = ((self.turn.owner, self._found()), (self.turn.guest, self._again))
        return [digest(sorted(of.items())) if self.transport.rank == rank else 0.0 for rank, of in ranks]

    def judge(self, numbers: Sequence[float]) -> None:
        first, again = numbers
        if first == again:
            return
        est, owner, guest = self.turn.est, self.turn.owner, self.turn.guest
        ranks = gather_values(self.transport, (self._found(), self._again, _hidden(self.state)))
        where, hint = f"when rank {owner} ran it a second time in step {self.step}", ""
        if owner != guest:
            apart = _apart(ranks[owner][2], ranks[guest][2], self.state)
            where, hint = _elsewhere(self.step, owner, guest), _listed("differing between these ranks", apart)
        refuse(est, different(ranks[owner][0], ranks[guest][1]), where, hint)

    def _found(self) -> dict[str, str]:
        """Hashes of the first run, where this rank has made it."""
        return _steady(self._first.found, self.state) if self._first is not None else {}


def _start_of(context: EstContext) -> EstContext:
    """What another rank needs to run the next step of an EST."""
    return replace(context, codec={}, loader=EstLoader(), values=dict(context.values))


def _first_run(est: Est, start: EstContext) -> FirstRun:
    return FirstRun(est, start.rng, values=start.values)


def _steady(found: dict[str, str], state: TrainingState) -> dict[str, str]:
    """Hashes other than those of values that are left out."""
    return {name: one for name, one in found.items() if name not in state.proof.unsteady}


def _hidden(state: TrainingState) -> dict[str, str]:
    """Hashes of attributes of the model and of what losses reach, by name."""
    return attributes(state.model) | state.reached.contents()


def _apart(before: dict[str, str], now: dict[str, str], state: TrainingState) -> list[str]:
    """Names of what differs, other than what moves with ESTs."""
    return [name for name in different(before, now) if name not in state.values.moved]


def _elsewhere(step: int, owner: int, guest: int) -> str:
    return f"when rank {guest} ran it in step {step} than when rank {owner} did"


def _listed(what: str, names: Sequence[str]) -> str:
    return f"; {what}: {_some(names)}" if names else ""


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_NAMES])
