"""The messages of an XSpace: planes of a host and its devices, with lines of events.

Field numbers are those of `xplane.proto` in openxla/xla.
"""

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from esprof.core.errors import InputError
from esprof.core.types import Ns
from esprof.run.kineto.content import content
from esprof.run.protobuf.wire import MalformedMessage, Value, double, fields, message, signed, text
from esprof.run.reading import memory_limit

Stat = int | float | str

STEP, CORRELATION, COPY = "step_num", "correlation_id", "memcpy_details"
_OF_EVENTS = (STEP, CORRELATION, COPY)
"""Stats of events that are read."""
STARTED, PROCESS, DEVICE_NAMES = "profile_start_time", "process_id", ("gpu_device_name", "device_type_string")
_OF_PLANES = (STARTED, PROCESS, *DEVICE_NAMES)
"""Stats of planes that are read."""
_GROWTH = 40
"""Memory that reading takes, as a multiple of the file."""


class Event(NamedTuple):
    name: str
    start_ns: Ns
    dur_ns: Ns
    stats: dict[str, Stat]


class Line(NamedTuple):
    """A thread of the host, or a stream or view of a device."""

    id: int
    name: str
    events: list[Event]


class Plane(NamedTuple):
    name: str
    lines: list[Line]
    stats: dict[str, Stat]


class Space(NamedTuple):
    """The profile of one host."""

    planes: list[Plane]
    hosts: list[str]


def read_space(path: Path) -> Space:
    """Read a profile, compressed or not. Raises InputError."""
    data = memoryview(content(path, memory_limit() // _GROWTH)).toreadonly()
    planes, hosts = [], []
    try:
        for number, value in fields(data):
            if number == 1:
                planes.append(_plane(value))
            elif number == 4:
                hosts.append(text(value))
    except MalformedMessage as error:
        reason = f"is no profile of JAX or TensorFlow, or a truncated one: {error}"
        raise InputError(reason, path=path, remedy="Copy or record it again.") from error
    return Space(planes, hosts)


def _plane(data: Value) -> Plane:
    name, lines, stats = "", [], []
    events: dict[int, str] = {}
    names: dict[int, str] = {}
    for number, value in message(data):
        match number:
            case 2:
                name = text(value)
            case 3:
                lines.append(value)  # They refer to names that may come later.
            case 4:
                events |= _metadata(value)
            case 5:
                names |= _metadata(value)
            case 6:
                stats.append(value)
    return Plane(name, [_line(line, events, names) for line in lines], _stats(stats, names, _OF_PLANES))


def _metadata(entry: Value) -> dict[int, str]:
    """Id -> name of an entry of a map of metadata; the name to display where there is one."""
    key, name, shown = 0, "", ""
    for number, value in message(entry):
        if number == 1:
            key = signed(value)
        elif number == 2:
            for inner, content in message(value):
                if inner == 2:
                    name = text(content)
                elif inner == 4:
                    shown = text(content)
    return {key: shown or name}


def _line(data: Value, names: dict[int, str], stat_names: dict[int, str]) -> Line:
    number_of_line, name, shown, begin = 0, "", "", 0
    events = []
    for number, value in message(data):
        match number:
            case 1:
                number_of_line = signed(value)
            case 2:
                name = text(value)
            case 3:
                begin = signed(value)
            case 4:
                events.append(value)
            case 11:
                shown = text(value)
    found = (_event(event, begin, names, stat_names) for event in events)
    return Line(number_of_line, shown or name, [event for event in found if event is not None])


def _event(data: Value, begin: Ns, names: dict[int, str], stat_names: dict[int, str]) -> Event | None:
    """An event; None for one that sums up several and has no time."""
    name = offset = duration = 0
    stats = []
    for number, value in message(data):
        match number:
            case 1:
                name = signed(value)
            case 2:
                offset = signed(value)
            case 3:
                duration = signed(value)
            case 4:
                stats.append(value)
            case 5:
                return None
    start = begin + offset // 1000
    # Both ends are rounded alike, so that neighbours do not overlap.
    end = begin + (offset + duration) // 1000
    return Event(names.get(name, ""), start, end - start, _stats(stats, stat_names, _OF_EVENTS))


def _stats(messages: list[Value], names: dict[int, str], wanted: Collection[str]) -> dict[str, Stat]:
    found: dict[str, Stat] = {}
    for data in messages:
        key = ""
        kept: Stat | None = None
        for number, value in message(data):
            if number == 1:
                key = names.get(signed(value), "")
            elif number == 2:
                kept = double(value)
            elif number in (3, 4):
                kept = signed(value)
            elif number == 5:
                kept = text(value)
            elif number == 7:
                kept = names.get(signed(value), "")
        if key in wanted and kept is not None:
            found[key] = kept
    return found
