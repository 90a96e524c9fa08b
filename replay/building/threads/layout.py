"""Lay out one CPU thread as a gapless chain of nodes: operations split at calls inside them, calls, gaps and waits."""

from typing import NamedTuple

import numpy as np

from esprof.core.compiled import compiled_in_place
from esprof.replay import rules
from esprof.replay.building.node_names import CODE_BITS, NameForm, Text, packed, plain
from esprof.replay.dfg import Cls

ALL = -1
"""Entry of `ThreadRows.own` for a call whose time is all own work."""

MAX_NODES_PER_ITEM = 5
"""Most nodes that a row or a step boundary adds: the rest of the previous operation, a wait, the rest of a gap, a hidden
wait, and the row or boundary itself."""

MAX_NODES_PER_PAUSE = 2
"""Most nodes that a pause adds: the section of the operation before it, and the wait."""

_NEVER_NS = np.iinfo(np.int64).max
_STEP, _HAND_OVER, _WAIT, _HIDDEN = map(plain, (Text.STEP, Text.HAND_OVER, Text.WAIT_FOR_COLLECTIVES, Text.HIDDEN_WAIT))
_START, _END = int(Text.START), int(Text.END)
_GAP = int(packed(NameForm.GAP, np.array(0)))
_MAX_BLOCKING_OWN, _MIN_HIDDEN_WAIT = rules.MAX_BLOCKING_OWN, rules.MIN_HIDDEN_WAIT
_MIN_HAND_OVER, _MAX_WAKE_UP, _MAX_SYNC_EARLY = rules.MIN_HAND_OVER, rules.MAX_WAKE_UP, rules.MAX_SYNC_EARLY


class ThreadRows(NamedTuple):
    """Classification of each row of the event table. Times in ns on the rank's clock."""

    start: np.ndarray
    end: np.ndarray
    text: np.ndarray
    """Name of the event of each row, int32, an index of a text."""
    name: np.ndarray
    """Name of the node of each row, int64, packed."""
    cls: np.ndarray
    """Class of the node of each row, int8, a `Cls`."""
    is_call: np.ndarray
    """bool: the row gets a node of its own, even inside an operation."""
    own: np.ndarray
    """How much of a call is its own work, int64, ns, or ALL; the rest of its time must come from an edge."""
    hides_wait: np.ndarray
    """bool: a long silence before the call was a wait."""


class ChainThread(NamedTuple):
    """One thread to lay out, from `begin` (ns) on; the main thread is laid out up to `finish` (ns)."""

    row: np.ndarray
    """Rows of the thread in the event table, by start."""
    begin: int
    finish: int
    is_main: bool
    boundaries: np.ndarray
    """Moments at which steps begin or end, ns, ascending; empty for all threads except the main thread."""
    partner: np.ndarray
    """Thread that hands work over to this one: the latest end of work up to each of its rows, ns; empty without one."""
    pause_begin: np.ndarray
    """Begin of each pause inside an operation that may be a wait for a collective, ns, ascending."""
    pause_end: np.ndarray
    """End of each pause, ns."""


class Works(NamedTuple):
    """Collectives that one thread launched to gloo's threads, sorted by end.

    `over` and `settled` are scalars, held in arrays so that compiled code can change them.
    """

    number: np.ndarray
    """Index of each collective in `GlooWork`."""
    launched: np.ndarray
    """Launch time of each collective, ns."""
    end: np.ndarray
    """End of each collective, ns, ascending."""
    waiter: np.ndarray
    """Node that waits for the collective, to be filled; -1 where none does."""
    over: np.ndarray
    """How many of the collectives had ended when the last gap began, shape (1,)."""
    settled: np.ndarray
    """How many of the collectives, from the first on, need not be examined again, shape (1,)."""


class BackwardNames(NamedTuple):
    """Names that occur in backward passes; one entry per text."""

    belongs: np.ndarray
    """bool: the text names an operation of a backward pass."""
    continues: np.ndarray
    """bool: the text names a node of the autograd graph, so the backward pass has not ended before it."""


class Outline(NamedTuple):
    """The items of a thread in order of time: top-level operations, calls, and step boundaries."""

    row: np.ndarray
    """Row of each item in the event table; -1 - n for step boundary n."""
    start: np.ndarray
    end: np.ndarray
    inside: np.ndarray
    """bool: the item is a call or step boundary inside the previous top-level operation."""


@compiled_in_place
def outline(thread: ChainThread, rows: ThreadRows, out: Outline) -> int:
    """Fill `out` and return the number of items.

    An operation inside another, or anything inside a call, is no item. Rounded times may let an operation end after the
    operation in which it starts; it then counts from the end of the enclosing one. An item that crosses the end of the
    enclosing item begins at that end.
    """
    # `covered` is the latest end of an operation so far, `top_end` the end of the last item that is not inside another,
    # `inner_end` the end of the last item inside that one.
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
        if boundary_start == start:  # a boundary precedes items that start at the same time
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
    """Position of the first operation from `at` on that is not inside earlier ones, which cover the time up to `covered`."""
    while at < len(thread.row):
        row = thread.row[at]
        if not rows.is_call[row] and (rows.start[row] >= covered or rows.end[row] > covered):
            break
        at += 1
    return at


@compiled_in_place
def _next_call(thread: ChainThread, rows: ThreadRows, at: int) -> int:
    """Position of the first call from `at` on."""
    while at < len(thread.row) and not rows.is_call[thread.row[at]]:
        at += 1
    return at


@compiled_in_place
def _encloses_call(rows: ThreadRows, operation: int, call: int) -> bool:
    """Whether the operation encloses the call; both start at the same time."""
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
    """Fill `nodes`, numbered from `base`, with the chain of `thread`, and return the number of nodes.

    Fills `node_of` for the rows of calls, and `node_at` for step boundaries.
    """
    # The chain reaches up to `now`, and `before` is the text of its last item; `operation` is the open top-level operation.
    # Gaps among the nodes from `unnamed` on have no name yet for the item that follows them.
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
                is_over = backward.belongs[before] and not (row >= 0 and backward.continues[rows.text[row]])
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
    """Add the work of an operation from `begin` to `until`, split at pauses in which it waits for a collective.

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
    """Add the time up to the next item, in which no operation was recorded: a wait if its cause ends there, then a gap.

    `before` is the text of the previous item. Returns the new count of nodes.
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
    """Add `after`, the text of the item that follows, to the names of the gaps among these nodes; returns `end`.

    Step boundaries are no such items: the gaps on both sides of a boundary get the same name.
    """
    for at in range(begin, end):
        if nodes[at].cls == Cls.HOST_GAP:
            nodes[at].name |= after
    return end


@compiled_in_place
def _reveal_hidden_wait(nodes: np.ndarray, count: int, until: int) -> int:
    """Add the wait hidden before a call, if the previous node is long; that node then takes only `_MAX_BLOCKING_OWN`."""
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
    """End of the thread's wait for collectives in its gap [begin, until], ns; -1 if it does not wait there.

    `node` is the node of the wait. The profiler does not record `Work.wait`. A gap in which an outstanding collective ends
    is a wait if it directly follows the backward pass (DDP waits for all buckets there), or if the thread continues soon
    after that end. The waiting thread may continue before gloo's thread, which must be scheduled, has recorded the end.
    """
    early = _MAX_WAKE_UP if after_backward or until - begin > 2 * _MAX_WAKE_UP else _MAX_SYNC_EARLY
    settled, over = works.settled[0], works.over[0]
    while over < len(works.end) and works.end[over] <= begin:
        over += 1
    works.over[0] = over
    last, at = -1, over  # `last` is the last outstanding collective that ends in the gap, or at most `early` after it
    while at < len(works.end) and works.end[at] <= until + early:
        last = at if _is_outstanding(works, at, begin) else last
        at += 1
    if after_backward and last < 0:
        # Gloo's thread may be throttled by a CPU quota before it has recorded the end that the waiting thread saw.
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
    """Whether a collective was launched by `moment` (ns) and nothing has waited for it yet."""
    outstanding: bool = works.waiter[work] < 0 and works.launched[work] <= moment
    return outstanding


@compiled_in_place
def _any_outstanding(works: Works, begin: int, end: int, moment: int) -> bool:
    found = False
    for work in range(begin, end):
        found = found or _is_outstanding(works, work, moment)
    return found
