"""The peers of a real rank, replayed while it runs: when they launch each collective, and when it ends.

The recorded graph is reduced to what peers do between two collectives of the real rank. A (max, +) equation gives when
the last of them has launched a collective: the latest, over the collectives that they waited for before, of when all
ranks had met there plus their recorded work since then. Peers so wait for a slow rank as they would in life.
"""

import json
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA = "esprof.ghost/1"

UNKNOWN = -1
"""Size of a collective that was recorded without one: any size fits."""


@dataclass(frozen=True)
class Call:
    """A collective that the real rank launches."""

    kind: str
    """Such as `all_reduce`."""
    group: tuple[int, ...]
    """Global ranks of its process group."""
    bytes: int
    """The larger of the bytes sent and received."""

    def __str__(self) -> str:
        return f"{self.kind} of {self.bytes:,} bytes in a group of {len(self.group)}"


@dataclass(frozen=True)
class ScheduledCall:
    """A collective of the schedule. Times in ns."""

    call: Call
    link: int
    """Number of the link: it carries one collective at a time."""
    transfer_ns: int
    """How long it takes on the link, once all ranks have met."""
    waits: bool
    """Whether the real rank waits for its peers. A sender does not."""
    awaited: bool
    """Whether its peers wait for the real rank. For a receiver they do not."""
    after: tuple[tuple[int, int], ...]
    """(how many collectives back, recorded work of the peers since all ranks had met there, ns)."""
    last: int
    """The peer that was last in the recording."""

    def fits(self, call: Call) -> bool:
        mine = self.call
        return (mine.kind, mine.group) == (call.kind, call.group) and mine.bytes in (call.bytes, UNKNOWN)


class PeerSchedule:
    """What was recorded: a loop of steps that have the same collectives."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.rank: int = content["rank"]
        self.world_size: int = content["world_size"]
        self.threads: int | None = content["threads"]
        steps = content["steps"]
        self.recorded_ns: list[int] = [step["recorded_ns"] for step in steps]
        self.replayed_ns: list[int] = [step["replayed_ns"] for step in steps]
        self.plain_ns: list[int] = content["plain_ns"]
        """Steps without profiler; empty where they are too few."""
        self.calls = [_scheduled(one) for step in steps for one in step["collectives"]]
        self.of_a_step = len(steps[0]["collectives"])
        """Number of collectives of a step."""

    @classmethod
    def read(cls, path: Path) -> "PeerSchedule":
        content = json.loads(path.read_bytes())
        if content.get("schema") != SCHEMA:
            raise SystemExit(f"{path} is no schedule of {SCHEMA}: export it again")
        return cls(content)


def _scheduled(content: dict[str, Any]) -> ScheduledCall:
    return ScheduledCall(
        call=Call(content["kind"], tuple(content["group"]), content["bytes"]),
        link=content["link"],
        transfer_ns=content["transfer_ns"],
        waits=content["waits"],
        awaited=content["awaited"],
        after=tuple((since["back"], since["work_ns"]) for since in content["after"]),
        last=content["last"],
    )


class ReplayedPeers:
    """The replayed peers. They join in when the real rank has launched the collectives of a whole step in their order."""

    def __init__(self, schedule: PeerSchedule) -> None:
        self._schedule = schedule
        self._recent: deque[tuple[Call, int]] = deque(maxlen=schedule.of_a_step)
        """The latest launches before the peers join in, with their times, ns."""
        self._next: int | None = None
        """Position of the collective in the schedule that comes next; None while the peers have not joined in."""
        self._met: deque[int] = deque(maxlen=max((back for one in schedule.calls for back, _ in one.after), default=1))
        """When all ranks had met at the latest collectives, ns; as far back as the schedule looks."""
        self._free: dict[int, int] = {}
        """When each link is free, ns."""
        self._ended_ns = 0
        """When the last collective of the latest step ended."""
        self.step_ns: list[int] = []
        """Duration of each step that the peers took part in, ns: from the end of the last collective of the step before to
        that of its own last one."""
        self.before = 0
        """Number of collectives before the peers joined in."""
        self.strangers: Counter[Call] = Counter()
        """Collectives since then that the schedule does not have at their place."""
        self.waited_ns: Counter[int] = Counter()
        """How long the real rank waited, by the peer that was last in the recording."""
        self._waited_until_ns = 0

    def launch(self, call: Call, now_ns: int) -> int:
        """The real rank launches `call` now. Returns when it ends, ns; one that the schedule does not have ends at once."""
        if self._next is None:
            self.before += 1
            self._join_in(call, now_ns)
            return now_ns
        if not self._schedule.calls[self._next].fits(call):
            self.strangers[call] += 1
            return now_ns
        return self._meet(self._next, now_ns)

    def _meet(self, at: int, now_ns: int) -> int:
        one = self._schedule.calls[at]
        arrivals = [self._met[-back] + work_ns for back, work_ns in one.after if back <= len(self._met)]
        self._met.append(max([*arrivals, now_ns] if one.awaited else arrivals, default=now_ns))
        begin = max(self._met[-1], now_ns) if one.waits else now_ns
        # Of collectives that wait at the same time, the first counts.
        self.waited_ns[one.last] += max(0, begin - max(now_ns, self._waited_until_ns))
        self._waited_until_ns = max(self._waited_until_ns, begin)
        end = max(begin, self._free.get(one.link, begin)) + one.transfer_ns
        self._free[one.link] = end
        self._next = (at + 1) % len(self._schedule.calls)
        if self._next % self._schedule.of_a_step == 0:
            self.step_ns.append(end - self._ended_ns)
            self._ended_ns = end
        return end

    def _join_in(self, call: Call, now_ns: int) -> None:
        """If the latest launches are those of a whole step, the peers have launched with the rank, and go on from there."""
        self._recent.append((call, now_ns))
        step = self._schedule.calls[: self._schedule.of_a_step]
        if len(self._recent) == len(step) and all(
            one.fits(it) for one, (it, _) in zip(step, self._recent, strict=True)
        ):
            self._next, self._ended_ns = 0, now_ns
            self._met.extend(launched_ns for _, launched_ns in self._recent)
