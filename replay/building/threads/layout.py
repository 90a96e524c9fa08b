"""One CPU thread laid out as a gapless chain of nodes: operations split at the calls inside them, calls, gaps and waits."""

from typing import NamedTuple

import numpy as np

from esprof.core.compiled import compiled_in_place
from esprof.replay import rules
from esprof.replay.building.node_names import CODE_BITS, NameForm, Text, packed, plain
from esprof.replay.dfg import Cls

ALL = -1
"""As an entry of `ThreadRows.own`: all of the call's time is its own work."""

MAX_NODES_PER_ITEM = 5
"""Most nodes that a row or a border adds: the rest of the operation before it, a wait and the rest of a gap, a hidden
wait, and the row or border itself."""

MAX_NODES_PER_PAUSE = 2
"""Most nodes that a pause adds: what came before it of the operation, and the wait."""

_NEVER_NS = np.iinfo(np.int64).max
_STEP, _HAND_OVER, _WAIT, _HIDDEN = map(plain, (Text.STEP, Text.HAND_OVER, Text.WAIT_FOR_COLLECTIVES, Text.HIDDEN_WAIT))
_START, _END = int(Text.START), int(Text.END)
_GAP = int(packed(NameForm.GAP, np.array(0)))
_MIN_WAITING_CALL, _MAX_BLOCKING_OWN, _MIN_HIDDEN_WAIT = (
    rules.MIN_WAITING_CALL,
    rules.MAX_BLOCKING_OWN,
    rules.MIN_HIDDEN_WAIT,
)
_MIN_HAND_OVER, _MAX_WAKE_UP, _MAX_SYNC_EARLY = rules.MIN_HAND_OVER, rules.MAX_WAKE_UP, rules.MAX_SYNC_EARLY


class ThreadRows(NamedTuple):
    """What each row of the event table is on its thread. Times in ns on the rank's clock."""

    start: np.ndarray
    end: np.ndarray
    text: np.ndarray
    """Name of the event of each row, int32, the number of a text."""
    name: np.ndarray
    """Name of the node of each row, int64, packed."""
    cls: np.ndarray
    """Class of the node of each row, int8, a `Cls`."""
    is_call: np.ndarray
    """bool: the row stands by itself, even inside an operation."""
    own: np.ndarray
    """How much of a call is its own work, int64, ns, or ALL; the rest of its time must come from an edge."""
    hides_wait: np.ndarray
    """bool: a long silence before the call was a wait."""


class ChainThread(NamedTuple):
    """One thread to lay out, from `begin` on, and the main thread up to `finish`; ns."""

    row: np.ndarray
    """Rows of the thread in the event table, by start."""
    begin: int
    finish: int
    is_main: bool
    boundaries: np.ndarray
    """Moments at which steps begin or end, ns, ascending; empty but for the main thread."""
    partner: np.ndarray
    """Latest end of work up to each row of the thread that hands over to this one, ns; empty where there is no such
    thread."""
    pause_begin: np.ndarray
    """When each silence inside an operation begins that may be a wait for a collective, ns, ascending."""
    pause_end: np.ndarray
    """When each of these ends, ns."""


class Works(NamedTuple):
    """Collectives that one thread launched to gloo's threads, by end.

    `over` and `settled` are single numbers, in arrays so that compiled code can change them.
    """

    number: np.ndarray
    """Place of each collective in `GlooWork`."""
    launched: np.ndarray
    """When the collective was launched, ns."""
    end: np.ndarray
    """When the collective ended, ns, ascending."""
    waiter: np.ndarray
    """Node that waits for the collective, to be filled; -1 where none does."""
    over: np.ndarray
    """How many of the collectives had ended when the last gap began, shape (1,)."""
    settled: np.ndarray
    """How many of the collectives, from the first on, need not be looked at again, shape (1,)."""


class BackwardNames(NamedTuple):
    """What each text has to do with backward passes; an entry for each text."""

    belongs: np.ndarray
    """bool: the text names what a backward pass does."""
    goes_on: np.ndarray
    """bool: the text names a node of the autograd graph, with which a backward pass goes on."""


class Outline(NamedTuple):
    """The items of a thread that stand by themselves, in order: top-level operations, calls, and step boundaries."""

    row: np.ndarray
    """Row of each item in the event table; -1 - n for border n."""
    start: np.ndarray
    end: np.ndarray
    inside: np.ndarray
    """bool: the item is a call or border inside the last top-level operation before it."""


@compiled_in_place
def outline(thread: ChainThread, rows: ThreadRows, out: Outline) -> int:
    """Fill `out` and return how many items there are.

    An operation inside another is no item. One that ends behind the operation in which it starts, as rounded times make
    it, counts from the end of that operation. An item that crosses the end of the one around it begins at that end. What
    is inside a call is part of the call.
    """
    # `covered` is the latest end of an operation so far, `top_end` that of the last item that is not inside another, and
    # `inner_end` that of the last item within it.
    op = call = boundary = count = 0
    covered = top_end = inner_end = 0
    in_operation = False
    while True:
        op = _next_operation(thread, rows, op, covered)
        call = _next_call(thread, rows, call)
        op_start = max(rows.start[thread.row[op]], covered) if op < len(thread.row) else _NEVER_NS
        call_start = rows.start[thread.row[call]] if call < len(thread.row) else _NEVER_NS
        boundary_start = thread.boundaries[boundary] if boundary < len(thread.boundaries) else _NEVER_NS
        start = min(op_start, call_start, boundary_start)
        if start == _NEVER_NS:
            return count
        if boundary_start == start:  # before what begins with it
            row, end, is_operation = -1 - boundary, start, False
            boundary += 1
        elif op_start == start and (call_start > start or _encloses_call(rows, thread.row[op], thread.row[call])):
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
def _next_operation(thread: ChainThread, rows: ThreadRows, at: int, covered: int) -> int:
    """Place of the first operation from `at` on that is not inside those before it, which reach up to `covered`."""
    while at < len(thread.row):
        row = thread.row[at]
        if not rows.is_call[row] and (rows.start[row] >= covered or rows.end[row] > covered):
            break
        at += 1
    return at


@compiled_in_place
def _next_call(thread: ChainThread, rows: ThreadRows, at: int) -> int:
    """Place of the first call from `at` on."""
    while at < len(thread.row) and not rows.is_call[thread.row[at]]:
        at += 1
    return at


@compiled_in_place
def _encloses_call(rows: ThreadRows, operation: int, call: int) -> bool:
    """Whether, of an operation and a call that start together, the operation is around the call."""
    return rows.end[operation] > rows.end[call] or (rows.end[operation] == rows.end[call] and operation < call)


@compiled_in_place
def lay_out(
    items: Outline,
    thread: ChainThread,
    rows: ThreadRows,
    works: Works,
    backward: BackwardNames,
    base: int,
    nodes: np.ndarray,
    node_of: np.ndarray,
    node_at: np.ndarray,
) -> int:
    """Fill `nodes`, numbered from `base`, with the chain of `thread`, and return how many there are.

    Fills `node_of` for the rows of calls, and `node_at` for borders.
    """
    # The chain reaches up to `now`, and ends with what the text `before` names; `operation` is the top-level operation of
    # which something may be left. The gaps among the nodes from `unnamed` on are not told yet what follows them.
    count = unnamed = 0
    operation, operation_end = -1, 0
    now, before = thread.begin, _START
    for n in range(len(items.row)):
        row, start, end = items.row[n], items.start[n], items.end[n]
        until = start if items.inside[n] else operation_end
        if operation >= 0 and now < until:
            count = _operate(thread, rows, works, base, nodes, count, now, until, operation)
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
        count = _operate(thread, rows, works, base, nodes, count, now, operation_end, operation)
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
def _operate(
    thread: ChainThread,
    rows: ThreadRows,
    works: Works,
    base: int,
    nodes: np.ndarray,
    count: int,
    begin: int,
    until: int,
    operation: int,
) -> int:
    """Add what an operation does from `begin` to `until`: its work, cut where it pauses until a collective ends.

    Returns the new count of nodes.
    """
    now, name, cls = begin, rows.name[operation], rows.cls[operation]
    at = np.searchsorted(thread.pause_begin, begin)
    while at < len(thread.pause_begin) and thread.pause_end[at] <= until:
        pause = thread.pause_begin[at]
        works_before = int(now < pause)
        moment = _awaited(works, pause, thread.pause_end[at], False, base + count + works_before)
        if moment >= 0:
            if works_before:
                count = _add(nodes, count, now, pause, name, cls, operation)
            count = _add(nodes, count, moment, moment, _WAIT, Cls.WAIT, -1)
            now = moment
        at += 1
    return _add(nodes, count, now, until, name, cls, operation) if now < until else count


@compiled_in_place
def _gap(
    thread: ChainThread,
    works: Works,
    after_backward: bool,
    base: int,
    nodes: np.ndarray,
    count: int,
    begin: int,
    until: int,
    before: int,
) -> int:
    """Add the time up to the next item, in which no operation was recorded: a wait, where a cause ends in it, then a gap.

    `before` is the text of what came last. Returns the new count of nodes.
    """
    now = _awaited(works, begin, until, after_backward, base + count)
    if now >= 0:
        count = _add(nodes, count, now, now, _WAIT, Cls.WAIT, -1)
    elif until - begin > _MIN_HAND_OVER:
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
    """Name the gaps among these nodes after what follows them, too, the text `after`; returns `end`.

    Borders of steps do not count as what follows: the gaps on both sides of one get the same name.
    """
    for at in range(begin, end):
        if nodes[at].cls == Cls.HOST_GAP:
            nodes[at].name |= after
    return end


@compiled_in_place
def _reveal_hidden_wait(nodes: np.ndarray, count: int, until: int) -> int:
    """Turn a long silence before a call that hides a wait into that wait: the node before it keeps `_MAX_BLOCKING_OWN`."""
    if count == 0:
        return count
    last = nodes[count - 1]
    if last.dur_ns <= _MIN_HIDDEN_WAIT or (
        last.cls != Cls.CPU and last.cls != Cls.HOST_GAP and last.cls != Cls.COMPUTE
    ):
        return count
    last.dur_ns = _MAX_BLOCKING_OWN
    return _add(nodes, count, until, until, _HIDDEN, Cls.WAIT, -1)


@compiled_in_place
def _awaited(works: Works, begin: int, until: int, after_backward: bool, node: int) -> int:
    """Until when the thread waits for collectives in its gap [begin, until], ns; -1 where it does not. `node` is that wait.

    The profiler does not record `Work.wait`. A gap in which an outstanding collective ends is such a wait if it comes right
    after the backward pass (DDP waits for all buckets there), or if the thread goes on soon after that end. The waiting
    thread may go on before the transfer's own thread, which has to be scheduled again, has noted the end.
    """
    early = _MAX_WAKE_UP if after_backward or until - begin > 2 * _MAX_WAKE_UP else _MAX_SYNC_EARLY
    settled, over = works.settled[0], works.over[0]
    while over < len(works.end) and works.end[over] <= begin:
        over += 1
    works.over[0] = over
    last, at = -1, over  # `last` is the last outstanding collective that ends in the gap, or early enough behind it.
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
    soon = last >= 0 and until - moment <= max(_MAX_WAKE_UP, (until - begin) // 2)
    if not soon and not (after_backward and (last >= 0 or _any_outstanding(works, settled, over, begin))):
        return -1
    for work in range(settled, max(last + 1, over)):
        if _is_outstanding(works, work, begin):
            works.waiter[work] = node
    works.settled[0] = over
    return moment


@compiled_in_place
def _is_outstanding(works: Works, work: int, moment: int) -> bool:
    """Whether a collective was launched by `moment`, and nothing has waited for it yet."""
    outstanding: bool = works.waiter[work] < 0 and works.launched[work] <= moment
    return outstanding


@compiled_in_place
def _any_outstanding(works: Works, begin: int, end: int, moment: int) -> bool:
    found = False
    for work in range(begin, end):
        found = found or _is_outstanding(works, work, moment)
    return found
