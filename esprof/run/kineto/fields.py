"""What esprof reads of a trace row: the keys as recorders spell them, and what their values may be."""

from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from typing import Any

import msgspec


class Form(IntEnum):
    """How the scanner keeps the usual values of a field; all others it keeps as the text that they are."""

    TEXT = 0
    NUMBER = 1
    """An integer of up to 18 digits."""
    TIME = 2
    """Microseconds with up to three decimals, kept as nanoseconds."""


@dataclass(frozen=True)
class Field:
    """A key of a row or, `nested`, of its `args`. A value that is no `type` is left out and counted."""

    key: str
    form: Form
    type: Any
    nested: bool = True


_NUMBER: Any = int | float | str | None
_TEXT: Any = str | None
_TIME: Any = Decimal | None


def _row(key: str, form: Form, type_: Any) -> Field:
    return Field(key, form, type_, nested=False)


FIELDS = (
    _row("ph", Form.TEXT, _TEXT),
    _row("cat", Form.TEXT, _TEXT),
    _row("name", Form.TEXT, _TEXT),
    _row("pid", Form.NUMBER, _NUMBER),
    _row("tid", Form.NUMBER, _NUMBER),
    _row("ts", Form.TIME, _TIME),
    _row("dur", Form.TIME, _TIME),
    Field("External id", Form.NUMBER, _NUMBER),
    Field("external id", Form.NUMBER, _NUMBER),
    Field("correlation", Form.NUMBER, _NUMBER),
    Field("device", Form.NUMBER, _NUMBER),
    Field("stream", Form.NUMBER, _NUMBER),
    Field("Sequence number", Form.NUMBER, _NUMBER),
    Field("Fwd thread id", Form.NUMBER, _NUMBER),
    Field("bytes", Form.NUMBER, _NUMBER),
    Field("Input Dims", Form.TEXT, msgspec.Raw),
    Field("Input type", Form.TEXT, msgspec.Raw),
    Field("Collective name", Form.TEXT, _TEXT),
    Field("In msg nelems", Form.NUMBER, _NUMBER),
    Field("Out msg nelems", Form.NUMBER, _NUMBER),
    Field("dtype", Form.TEXT, _TEXT),
    Field("Process Group Name", Form.TEXT, str | int | None),
    Field("Process Group Ranks", Form.TEXT, tuple[int, ...] | str | None),
    Field("Seq", Form.NUMBER, _NUMBER),
    Field("Src Rank", Form.NUMBER, _NUMBER),
    Field("Dst Rank", Form.NUMBER, _NUMBER),
    Field("wait_on_stream", Form.NUMBER, _NUMBER),
    Field("wait_on_cuda_event_record_corr_id", Form.NUMBER, _NUMBER),
)
