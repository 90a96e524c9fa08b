"""One CPU thread laid out as a gapless chain of nodes: operations split at the calls inside them, calls, gaps and waits."""

from typing import NamedTuple

import numpy as np

from esprof.compiled import compiled_in_place
from esprof.replay import rules
from esprof.replay.building.names import CODE_BITS, Form, Text, packed, plain
from esprof.replay.dfg import Cls

ALL = -1
"""As a call's own time: all of it is its work."""

MOST_NODES = 5
"""Nodes that a row or a border may add: what is left of the operation before, a wait and the rest of a gap, a hidden wait,
itself."""

_NEVER = np.iinfo(np.int64).max
_STEP, _HAND_OVER, _WAIT, _HIDDEN = map(plain, (Text.STEP, Text.HAND_OVER, Text.WAIT_FOR_COLLECTIVES, Text.HIDDEN_WAIT))
_START, _END = int(Text.START), int(Text.END)
_GAP = int(packed(Form.GAP, np.array(0)))
_LONG_CALL, _BLOCKING_OWN, _HIDDEN_WAIT = rules.LONG_CALL, rules.BLOCKING_OWN, rules.HIDDEN_WAIT
_HANDOVER, _WAKE_UP, _SYNC_EARLY = rules.HANDOVER, rules.WAKE_UP, rules.SYNC_EARLY


class Rows(NamedTuple):
    """What each row of the event table is on its thread."""

    start: np.ndarray
    end: np.ndarray
    text: np.ndarray
    """int32, the event's name."""
    name: np.ndarray
    """int64, its node's name, packed."""
    cls: np.ndarray
    """int8"""
    is_call: np.ndarray
    """bool: stands by itself, even inside an operation."""
    own: np.ndarray
    """int64, ns that are the work of a call itself, or ALL; the rest of its time must come from an edge."""
    hides_wait: np.ndarray
    """bool: a long silence before this call was a wait."""


class Thread(NamedTuple):
    """One thread to lay out, from `begin`, and the main thread up to `finish`."""

    row: np.ndarray
    begin: int
    finish: int
    is_main: bool
    borders: np.ndarray
    """On the main thread, the moments at which steps begin or end, ascending."""
    partner: np.ndarray
    """Latest end of work up to each row of the thread that hands over to this one; empty where there is none."""


class Works(NamedTuple):
    """Collectives that the thread issued to gloo's threads, by end."""

    number: np.ndarray
    """Their numbers among those of the rank."""
    issued: np.ndarray
    end: np.ndarray
    waiter: np.ndarray
    """To be filled: the node that waits for it; -1 where none does."""
    over: np.ndarray
    """shape (1,): how many had ended when the last gap began."""
    settled: np.ndarray
    """shape (1,): how many of those need not be looked at again."""


class Backward(NamedTuple):
    """What each text has to do with backward passes."""

    belongs: np.ndarray
    """bool: names what a backward pass does."""
    goes_on: np.ndarray
    """bool: names a node of the autograd graph, with which a backward pass goes on."""


class Outline(NamedTuple):
    """The items of a thread that stand by themselves, in order: top-level operations, calls, and borders of steps."""

    row: np.ndarray
    """Row of the event table; of border n it is -1 - n."""
    start: np.ndarray
    end: np.ndarray
    inside: np.ndarray
    """bool: a call or border inside the last operation before it that is not."""


@compiled_in_place
def outline(thread: Thread, rows: Rows, out: Outline) -> int:
    """Fill `out` and return how many items there are.

    An operation inside another is none, and one that sticks out of the one before, as rounded times make it, counts from
    where that ends. An item that crosses the end of the one around it begins behind it. What is inside a call is part of it.
    """
    op = call = border = count = 0
    covered = top_end = inner_end = 0
    in_operation = False
    while True:
        op = _next_operation(thread, rows, op, covered)
        call = _next_call(thread, rows, call)
        op_start = max(rows.start[thread.row[op]], covered) if op < len(thread.row) else _NEVER
        call_start = rows.start[thread.row[call]] if call < len(thread.row) else _NEVER
        border_start = thread.borders[border] if border < len(thread.borders) else _NEVER
        start = min(op_start, call_start, border_start)
        if start == _NEVER:
            return count
        if border_start == start:  # before what begins with it
            row, end, is_operation = -1 - border, start, False
            border += 1
        elif op_start == start and (call_start > start or _around(rows, thread.row[op], thread.row[call])):
            row, is_operation = thread.row[op], True
            end = covered = max(covered, min(rows.end[row], thread.finish))
            op += 1
        else:
            row, is_operation = thread.row[call], False
            end = min(rows.end[row], thread.finish)
            call += 1
        if start < top_end < end:
            start = top_end
        inside = start < top_end
        if not inside:
            top_end, inner_end, in_operation = end, start, is_operation
        elif in_operation and start >= inner_end:
            inner_end = end
        else:
            continue
        out.row[count], out.start[count], out.end[count], out.inside[count] = row, start, end, inside
        count += 1


@compiled_in_place
def _next_operation(thread: Thread, rows: Rows, at: int, covered: int) -> int:
    """The first operation from `at` on that is not inside those before it, which reach up to `covered`."""
    while at < len(thread.row):
        row = thread.row[at]
        if not rows.is_call[row] and (rows.start[row] >= covered or rows.end[row] > covered):
            break
        at += 1
    return at


@compiled_in_place
def _next_call(thread: Thread, rows: Rows, at: int) -> int:
    while at < len(thread.row) and not rows.is_call[thread.row[at]]:
        at += 1
    return at


@compiled_in_place
def _around(rows: Rows, operation: int, call: int) -> bool:
    """Whether of two that start together the operation is around the call."""
    return rows.end[operation] > rows.end[call] or (rows.end[operation] == rows.end[call] and operation < call)


@compiled_in_place
def lay_out(
    items: Outline,
    thread: Thread,
    rows: Rows,
    works: Works,
    backward: Backward,
    base: int,
    nodes: np.ndarray,
    node_of: np.ndarray,
    node_at: np.ndarray,
) -> int:
    """Fill `nodes`, numbered from `base`, with the chain of `thread`, and return how many there are.

    Fills `node_of` for the rows of calls, and `node_at` for borders.
    """
    count = unnamed = 0
    operation, operation_end = -1, 0
    now, before = thread.begin, _START
    for n in range(len(items.row)):
        row, start, end = items.row[n], items.start[n], items.end[n]
        until = start if items.inside[n] else operation_end
        if operation >= 0 and now < until:
            count = _add(nodes, count, now, until, rows.name[operation], rows.cls[operation], operation)
            now, before = until, rows.text[operation]
        if not items.inside[n]:
            operation = -1
            if now < start:
                is_over = backward.belongs[before] and not (row >= 0 and backward.goes_on[rows.text[row]])
                count = _gap(thread, works, is_over, base, nodes, count, now, start, before)
                now = start
            if row >= 0:
                unnamed = _name_gaps(nodes, unnamed, count, rows.text[row])
        if row < 0:
            node_at[-1 - row] = base + count
            count = _add(nodes, count, now, now, _STEP, Cls.CPU, -1)
        elif rows.is_call[row]:
            if rows.hides_wait[row]:
                count = _reveal_hidden_wait(nodes, count, now)
            node_of[row] = base + count
            begin = now if rows.own[row] == ALL else max(now, end - rows.own[row])
            count = _add(nodes, count, begin, end, rows.name[row], rows.cls[row], row)
            now, before = end, rows.text[row]
        else:
            operation, operation_end = row, end
    if operation >= 0 and now < operation_end:
        count = _add(nodes, count, now, operation_end, rows.name[operation], rows.cls[operation], operation)
        now, before = operation_end, rows.text[operation]
    if thread.is_main and now < thread.finish:
        count = _gap(thread, works, backward.belongs[before], base, nodes, count, now, thread.finish, before)
    _name_gaps(nodes, unnamed, count, _END)
    return count


@compiled_in_place
def _add(nodes: np.ndarray, at: int, start: int, end: int, name: int, cls: int, event: int) -> int:
    node = nodes[at]
    node.start_ns, node.dur_ns = start, end - start
    node.name, node.cls, node.event = name, cls, event
    return at + 1


@compiled_in_place
def _gap(
    thread: Thread,
    works: Works,
    after_backward: bool,
    base: int,
    nodes: np.ndarray,
    count: int,
    begin: int,
    until: int,
    before: int,
) -> int:
    """The time up to the next item, without any recorded operation: a wait, where a cause ends in it, then a gap."""
    now = _awaited(works, begin, until, after_backward, base + count)
    if now >= 0:
        count = _add(nodes, count, now, now, _WAIT, Cls.WAIT, -1)
    elif until - begin > _HANDOVER:
        now = _last_in(thread.partner, begin, until)
        if now >= 0:
            count = _add(nodes, count, now, now, _HAND_OVER, Cls.WAIT, -1)
    now = max(now, begin)
    if now < until:
        count = _add(nodes, count, now, until, _GAP | before << CODE_BITS, Cls.HOST_GAP, -1)
    return count


@compiled_in_place
def _last_in(moments: np.ndarray, begin: int, until: int) -> int:
    """The last of the ascending `moments` in (begin, until]; -1 if there is none."""
    at = np.searchsorted(moments, until, side="right") - 1
    return moments[at] if at >= 0 and moments[at] > begin else -1


@compiled_in_place
def _name_gaps(nodes: np.ndarray, begin: int, end: int, after: int) -> int:
    """Tell the gaps among these nodes what follows them: across the border of a step they keep one name."""
    for at in range(begin, end):
        if nodes[at].cls == Cls.HOST_GAP:
            nodes[at].name |= after
    return end


@compiled_in_place
def _reveal_hidden_wait(nodes: np.ndarray, count: int, until: int) -> int:
    """Silence up to a call that hides a wait, if long, was one: make it one, by shortening the stretch that hides it."""
    if count == 0:
        return count
    last = nodes[count - 1]
    if last.dur_ns <= _HIDDEN_WAIT or (last.cls != Cls.CPU and last.cls != Cls.HOST_GAP and last.cls != Cls.COMPUTE):
        return count
    last.dur_ns = _BLOCKING_OWN
    return _add(nodes, count, until, until, _HIDDEN, Cls.WAIT, -1)


@compiled_in_place
def _awaited(works: Works, begin: int, until: int, after_backward: bool, node: int) -> int:
    """Until when the thread waits for collectives in its gap [begin, until], if it does, as `node`; else -1.

    The profiler does not record `Work.wait`. A gap in which an outstanding collective ends is that wait when it comes
    right after the backward pass (DDP waits for all buckets there) or when the thread goes on soon after that end. The
    waiter may run before the transfer's own thread, which has to be scheduled again, has noted its end.
    """
    early = _WAKE_UP if after_backward or until - begin > 2 * _WAKE_UP else _SYNC_EARLY
    settled, over = works.settled[0], works.over[0]
    while over < len(works.end) and works.end[over] <= begin:
        over += 1
    works.over[0] = over
    last, at = -1, over
    while at < len(works.end) and works.end[at] <= until + early:
        last = at if _is_outstanding(works, at, begin) else last
        at += 1
    if after_backward and last < 0:
        # Its own thread may be stopped (by a CPU quota) before it has noted the end that the waiter saw.
        latest = until + (until - begin) // 4
        while at < len(works.end) and works.end[at] <= latest and last < 0:
            last = at if _is_outstanding(works, at, begin) else last
            at += 1
    moment = min(works.end[last], until) if last >= 0 else begin
    soon = last >= 0 and until - moment <= max(_WAKE_UP, (until - begin) // 2)
    if not soon and not (after_backward and (last >= 0 or _any_outstanding(works, settled, over, begin))):
        return -1
    for work in range(settled, max(last + 1, over)):
        if _is_outstanding(works, work, begin):
            works.waiter[work] = node
    works.settled[0] = over
    return moment


@compiled_in_place
def _is_outstanding(works: Works, work: int, moment: int) -> bool:
    """Whether a collective was issued by `moment`, and nothing has waited for it yet."""
    outstanding: bool = works.waiter[work] < 0 and works.issued[work] <= moment
    return outstanding


@compiled_in_place
def _any_outstanding(works: Works, begin: int, end: int, moment: int) -> bool:
    found = False
    for work in range(begin, end):
        found = found or _is_outstanding(works, work, moment)
    return found
