"""Schedules of replayed peers, by hand."""

from typing import Any

from esprof.recorder.ghost.peers import Call, PeerSchedule

MS = 1_000_000
WORLD = (0, 1)
SMALL, LARGE = Call("all_reduce", WORLD, 1000), Call("all_reduce", WORLD, 2000)


def collective(call: Call, transfer_ms: int, *after_ms: tuple[int, int], **columns: Any) -> dict[str, Any]:
    """A collective of a schedule; `after_ms` are (how many collectives back, work since then in ms)."""
    return {
        "kind": call.kind,
        "group": list(call.group),
        "bytes": call.bytes,
        "link": 0,
        "transfer_ns": transfer_ms * MS,
        "waits": True,
        "awaited": True,
        "after": [{"back": back, "work_ns": work_ms * MS} for back, work_ms in after_ms],
        "last": 1,
    } | columns


def schedule(*steps: list[dict[str, Any]], rank: int = 0, step_ms: int = 50) -> PeerSchedule:
    """A schedule of two ranks."""
    times = {"recorded_ns": step_ms * MS, "replayed_ns": step_ms * MS}
    loop = [{"step": number, "collectives": collectives} | times for number, collectives in enumerate(steps)]
    return PeerSchedule({"rank": rank, "world_size": 2, "threads": 1, "steps": loop, "plain_ns": [40 * MS]})


ONE_STEP = [collective(SMALL, 2, (1, 10)), collective(LARGE, 4, (1, 20))]
"""The peer comes to the first 10 ms after the second of the step before, and to the second 20 ms after the first."""
