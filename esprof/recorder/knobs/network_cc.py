"""`network.cc=`: the TCP congestion control of the connections of process groups."""

import functools
import re
from typing import Any

from ..shared import tcp
from .knob import Knob, KnobState, Reader, combined

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,14}")


def _spelled(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text!r} is not a name of a TCP congestion control, such as bbr")
    return text


def _install(value: str | None) -> Reader:
    from torch.distributed import distributed_c10d

    original = distributed_c10d._new_process_group_helper
    opened: set[tcp.TcpSocket] = set()
    refusals: list[str] = []

    @functools.wraps(original)
    def _new_process_group_helper(*arguments: Any, **options: Any) -> Any:
        before = tcp.sockets()
        group = original(*arguments, **options)
        new = tcp.sockets() - before
        opened.update(new)
        for one in new if value is not None else ():
            try:
                tcp.set_control(one, str(value))
            except OSError as error:
                refusals.append(tcp.refusal(str(value), error))
        return group

    # All functions that create process groups call this one.
    distributed_c10d._new_process_group_helper = _new_process_group_helper

    def read() -> KnobState:
        reading = combined(_controls(opened), "the process groups have opened no TCP connections")
        return reading._replace(reason=refusals[0]) if refusals else reading

    return read


def _controls(opened: set[tcp.TcpSocket]) -> set[str]:
    """The controls of those sockets that are still open."""
    found = set[str]()
    for one in opened:
        try:
            found.add(tcp.control_of(one))
        except OSError:  # Closed with its process group.
            continue
    return found


KNOB = Knob(
    name="network.cc",
    is_term=True,
    example="bbr",
    sets="the TCP congestion control of the sockets that gloo opens for each process group, when the group is created",
    reads="the control of these sockets, from the kernel",
    spelled=_spelled,
    install=_install,
)
