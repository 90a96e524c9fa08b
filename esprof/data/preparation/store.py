"""Prepared samples that the jobs of a host pass to each other: who prepares which, and the bytes until all have used them.

A sample is held as long as a live job needs it. A job needs those samples of its own epoch and of the next that it has not
used, so what is held is the lead of the fastest job over the slowest. Every change is a transaction; what a killed process
has claimed is free again at once, and what only a dead job needed is removed.
"""

import enum
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from esprof.core.errors import OutputError
from esprof.data.living import Living
from esprof.data.preparation import entries
from esprof.data.preparation.entries import EpochItem, JobRank
from esprof.data.shared_database import About, SharedDatabase, lmdb

_ROOM = 7 / 8
"""Share of the database for samples. The rest is for other entries, and for the copies of pages that a change needs."""
_LOOK_FOR_DEAD_S = 1.0
_PATIENCE_S = 0.5
"""How long to wait for room to note what must not be lost, such as a use: readers keep pages for milliseconds."""


class Turn(enum.Enum):
    """What a job that has asked for a sample has to do."""

    PREPARE = enum.auto()
    WAIT = enum.auto()


class PreparedStore:
    """The samples in `folder`, which takes no more while it is full."""

    def __init__(self, size: int, items: int, folder: str | os.PathLike[str]) -> None:
        """Raises what `SharedDatabase` raises."""
        self._database = SharedDatabase(size, About(items=items, use="prepared"), folder)
        self._living = Living(self.folder / "alive")
        self._room = int(self._database.size * _ROOM)
        self._looked_s = 0.0
        self._patience_s = _PATIENCE_S

    @property
    def folder(self) -> Path:
        return self._database.folder

    @property
    def held(self) -> int:
        """Number of samples that are held."""
        with self._database.begin() as transaction:
            return len(entries.keys(transaction, entries.SAMPLE))

    @property
    def held_bytes(self) -> int:
        """What they take up."""
        with self._database.begin() as transaction:
            return entries.count(transaction, entries.HELD_BYTES)

    def join(self, job: str) -> int:
        """Note a rank of `job` until it leaves or its process ends. Returns its number. Raises OutputError without room."""
        try:
            number = self._new_number()
            self._change_ranks(lambda ranks: ranks | {number: JobRank(job)})
        except lmdb().Error as error:
            reason = f"prepared samples cannot be shared here: {error}"
            raise OutputError(reason, path=self.folder, remedy="Make room, or name another folder.") from error
        return number

    def begin(self, number: int, epoch: int) -> None:
        """Note that a rank begins `epoch`: it needs nothing of those before."""

        def begun(ranks: dict[int, JobRank]) -> dict[int, JobRank]:
            return ranks | ({number: JobRank(ranks[number].job, epoch)} if number in ranks else {})

        with suppress(lmdb().Error):
            self._change_ranks(begun)

    def leave(self, number: int) -> None:
        """Note that a rank needs nothing any more."""
        self._living.release(number)
        with suppress(lmdb().Error):
            self._change_ranks(lambda ranks: ranks)

    def jobs(self) -> set[str]:
        """Jobs with live ranks."""
        with self._database.begin() as transaction:
            return {rank.job for rank in self._alive(transaction).values()}

    def take(self, job: str, item: EpochItem, *, insist: bool = False) -> bytes | Turn:
        """The sample, which `job` has used then, or else what `job` has to do: prepare it, which is claimed then, or wait
        for the process that does. With `insist`, it does not wait."""
        with suppress(lmdb().Error):  # Without room for the claim, both may prepare it.
            return self._taken(job, item, insist)
        return Turn.PREPARE

    def is_needed(self, item: EpochItem, *, besides: str) -> bool:
        """Whether a job needs the sample, other than the job `besides`."""
        with suppress(lmdb().Error), self._database.begin() as transaction:
            return entries.is_needed(transaction, item, besides)
        return False

    def finish(self, job: str, item: EpochItem, data: bytes | None) -> None:
        """Note that `job` has prepared the sample and used it. Its `data` are held if a job needs them and there is room."""
        with suppress(lmdb().Error):
            try:
                self._finish(job, item, data)
            except lmdb().MapFullError:  # Nothing was noted. Others wait as long as the sample is claimed.
                self._finish(job, item, None)

    def _finish(self, job: str, item: EpochItem, data: bytes | None) -> None:
        def finish(transaction: Any) -> None:
            if time.monotonic() - self._looked_s > _LOOK_FOR_DEAD_S:
                self._look_for_dead(transaction)
            transaction.delete(entries.key_of(entries.CLAIM, item))
            entries.note_use(transaction, job, item)
            sample = entries.key_of(entries.SAMPLE, item)
            if entries.is_needed(transaction, item):
                if data is not None:
                    self._hold(transaction, item, data)
            elif transaction.get(sample) is not None:  # It was held for this job, which could not take it.
                entries.remove(transaction, sample)

        if data is not None:
            self._database.change(finish)
        else:
            self._note(finish)

    def give_up(self, item: EpochItem) -> None:
        """Withdraw the claim to prepare the sample."""
        with suppress(lmdb().Error):
            self._database.change(lambda transaction: transaction.delete(entries.key_of(entries.CLAIM, item)))

    def _taken(self, job: str, item: EpochItem, insist: bool) -> bytes | Turn:
        sample, claim = entries.key_of(entries.SAMPLE, item), entries.key_of(entries.CLAIM, item)
        if not insist:
            # Processes that wait look often, and must not hinder those that write.
            with self._database.begin() as transaction:
                if transaction.get(sample) is None and self._is_claimed(transaction, claim):
                    return Turn.WAIT
        own = self._own_number()

        def take(transaction: Any) -> bytes | Turn:
            data = transaction.get(sample)
            if data is not None:
                found = bytes(data)
                entries.note_use(transaction, job, item)
                if not entries.is_needed(transaction, item):
                    entries.remove(transaction, sample)
                return found
            if not insist and self._is_claimed(transaction, claim):
                return Turn.WAIT
            transaction.put(claim, entries.packed(own))
            return Turn.PREPARE

        return self._database.change(take)

    def _is_claimed(self, transaction: Any, claim: bytes) -> bool:
        holder = transaction.get(claim)
        return holder is not None and self._living.is_held(entries.number_in(holder))

    def _hold(self, transaction: Any, item: EpochItem, data: bytes) -> None:
        held = entries.count(transaction, entries.HELD_BYTES) + entries.taken_up(data)
        if held <= self._room and transaction.put(entries.key_of(entries.SAMPLE, item), data, overwrite=False):
            transaction.put(entries.HELD_BYTES, entries.packed(held))

    def _change_ranks(self, changed: Callable[[dict[int, JobRank]], dict[int, JobRank]]) -> None:
        """Let the live ranks by number be as `changed` returns them. What none of them needs then is removed."""

        def change(transaction: Any) -> None:
            entries.put_ranks(transaction, changed(self._alive(transaction)))
            entries.tidy(transaction)

        self._note(change)

    def _note(self, change: Callable[[Any], None]) -> None:
        """Make a change that must not be lost, after a wait for room if need be. If it was lost, the next does not wait."""
        try:
            self._database.change(change, patience_s=self._patience_s)
        except lmdb().MapFullError:
            self._patience_s = 0.0
            raise
        self._patience_s = _PATIENCE_S

    def _look_for_dead(self, transaction: Any) -> None:
        """Remove dead ranks, and what only they needed."""
        self._looked_s = time.monotonic()
        self._database.release_dead_readers()
        alive = self._alive(transaction)
        if len(alive) < len(entries.ranks_of(transaction)):
            entries.put_ranks(transaction, alive)
            entries.tidy(transaction)

    def _alive(self, transaction: Any) -> dict[int, JobRank]:
        return {number: rank for number, rank in entries.ranks_of(transaction).items() if self._living.is_held(number)}

    def _own_number(self) -> int:
        """The number of this process in claims."""
        key = str(self.folder)
        if key not in _own:
            _own[key] = self._new_number()
        return _own[key]

    def _new_number(self) -> int:
        """A number that this process alone holds."""

        def draw(transaction: Any) -> int:
            number = entries.count(transaction, entries.NEXT)
            transaction.put(entries.NEXT, entries.packed(number + 1))
            return number

        number = self._database.change(draw)
        self._living.hold(number)
        return number


_own: dict[str, int] = {}
"""Number of this process in each folder."""

os.register_at_fork(after_in_child=_own.clear)
