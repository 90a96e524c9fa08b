"""Messages over gloo made by hand, as a recorded job's trace has them."""

import numpy as np

from esprof.replay.building.build import matched_ranks
from esprof.replay.steps import steps_of
from esprof.run.raw.message import NamedMessage
from esprof.run.run import Run
from tests.cases.graph import EPOCH_NS, MAIN, Row, op

BEGINS_US = 20
"""From the call of `isend` or `irecv` to the begin of gloo's event."""


def marked(name: str, start: float, dur: float, tid: int = MAIN) -> Row:
    """An annotation."""
    return Row(ph="X", cat="user_annotation", name=name, pid=100, tid=tid, ts=start, dur=dur)


def message(
    word: str, peer: int | None, called: float, end: float, *, group: str = "0", tag: int = 0, size: int = 4000
) -> list[Row]:
    """One end of a message, `send` or `recv`: called at this time, its event until `end`, µs. Without a peer the recorder
    named none."""
    name = NamedMessage(word, peer or 0, tag, size, "float32", group).name
    mark = [marked(name, called, 40)] if peer is not None else []
    call = {"send": "c10d::send", "recv": "c10d::recv_"}[word]
    begin = called + BEGINS_US
    return [*mark, op(call, called + 5, 30), marked(f"gloo:{word}", begin, end - begin)]


def matches(run: Run) -> set[tuple[int, int]]:
    """(when it was sent, when its receiver called) of each matched message, µs; both as of `message`."""
    ranks = matched_ranks(steps_of(run))
    at = [np.flatnonzero((ranks.number >= 0) & role) for role in (ranks.calls.sends, ranks.calls.receives)]
    called = (ranks.calls.start_ns - EPOCH_NS) // 1000 - BEGINS_US
    sent, received = (dict(zip(ranks.number[one].tolist(), called[one].tolist(), strict=True)) for one in at)
    assert sent.keys() == received.keys()
    return {(sent[number], received[number]) for number in sent}
