"""Flight logs without the names of the job. They still show where a job hangs, but not the names of its code."""

import builtins
import re

import msgspec

from esprof.analyzers.sharing.redaction.frames import redacted_file, redacted_function
from esprof.analyzers.sharing.redaction.hashed import hashed, hashed_group
from esprof.analyzers.sharing.redaction.operations import redacted_operation
from esprof.run.collective_names import ITEM_BYTES
from esprof.run.flight.log import (
    CallLog,
    EnteredCall,
    FlightLog,
    GroupMembers,
    Snapshot,
    StackFrame,
    StackThread,
    Worker,
)

_STACK_LINE = re.compile(r'^(  File ")(.*)(", line \d+ in )(.*)$')
_HEADING = re.compile(r"^(?:(?:Current thread|Thread) 0x[0-9a-f]+) ")
_FAULT = re.compile(
    r"^Fatal Python error: (?:Segmentation fault|Aborted|Bus error|Illegal instruction|Floating[ -]point \w+)"
)
_LOST_PEER = re.compile(
    r"connection (?:closed|reset) by (?:peer|remote)|broken pipe|remote process exited", re.IGNORECASE
)
"""Words of errors that rules know."""
_ERRORS = {"OutOfMemoryError", "DistBackendError", "DistNetworkError", "DistStoreError", "AcceleratorError"}
"""Types of PyTorch's exceptions."""


def redacted_flight(log: FlightLog) -> FlightLog:
    """The flight log with hashes for files, functions, threads, groups and messages of errors."""
    return msgspec.structs.replace(
        log, snapshots=tuple(map(_snapshot, log.snapshots)), fatal=None if log.fatal is None else _dump(log.fatal)
    )


def _snapshot(snapshot: Snapshot) -> Snapshot:
    return msgspec.structs.replace(
        snapshot,
        error=None if snapshot.error is None else _error(snapshot.error),
        error_type=None if snapshot.error_type is None else _error_type(snapshot.error_type),
        threads=tuple(map(_thread, snapshot.threads)),
        workers=tuple(map(_worker, snapshot.workers)),
        groups=tuple(map(_group, snapshot.groups)),
        calls=tuple(CallLog(tuple(map(_call, log.entries))) for log in snapshot.calls),
    )


def _error(text: str) -> str:
    known = _LOST_PEER.search(text)
    return hashed("error", text) + (f": {known[0]}" if known else "")


def _error_type(name: str) -> str:
    return name if hasattr(builtins, name) or name in _ERRORS else hashed("error", name)


def _thread(thread: StackThread) -> StackThread:
    return StackThread(
        name=hashed("thread", thread.name), training=thread.training, frames=tuple(map(_frame, thread.frames))
    )


def _frame(frame: StackFrame) -> StackFrame:
    return StackFrame(redacted_file(frame.file), frame.line, redacted_function(frame.file, frame.function))


def _worker(worker: Worker) -> Worker:
    return msgspec.structs.replace(worker, dump=None if worker.dump is None else _dump(worker.dump))


def _dump(text: str) -> str:
    """Stacks as faulthandler writes them; lines of any other form are left out."""
    return "\n".join(line for found in text.splitlines() if (line := _dump_line(found)) is not None)


def _dump_line(line: str) -> str | None:
    if found := _STACK_LINE.match(line):
        before, file, between, function = found.groups()
        return f"{before}{redacted_file(file)}{between}{redacted_function(file, function)}"
    if found := _HEADING.match(line):
        return f"{found[0]}(most recent call first):"
    return found[0] if (found := _FAULT.match(line)) else None


def _group(group: GroupMembers) -> GroupMembers:
    return GroupMembers(name=hashed_group(group.name), description=_text(group.description), ranks=group.ranks)


def _text(description: str | None) -> str | None:
    return description if description in (None, "default_pg") else hashed("group", description)


def _call(call: EnteredCall) -> EnteredCall:
    name, description = call.process_group
    return msgspec.structs.replace(
        call,
        process_group=(hashed_group(name), _text(description) or ""),
        profiling_name=redacted_operation("annotation", call.profiling_name),
        input_dtypes=tuple(dtype if dtype.lower() in ITEM_BYTES else "unknown" for dtype in call.input_dtypes),
        entered_at=None if call.entered_at is None else _frame(call.entered_at),
    )
