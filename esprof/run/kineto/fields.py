"""What esprof reads of a trace row: the keys as recorders spell them, and what their values may be."""

from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from typing import Any

import msgspec


class CellForm(IntEnum):
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
    form: CellForm
    type: Any
    nested: bool = True


_NUMBER: Any = int | float | str | None
_TEXT: Any = str | None
_TIME: Any = Decimal | None


def _row(key: str, form: CellForm, type_: Any) -> Field:
    return Field(key, form, type_, nested=False)


FIELDS = (
    _row("ph", CellForm.TEXT, _TEXT),
    _row("cat", CellForm.TEXT, _TEXT),
    _row("name", CellForm.TEXT, _TEXT),
    _row("pid", CellForm.NUMBER, _NUMBER),
    _row("tid", CellForm.NUMBER, _NUMBER),
    _row("ts", CellForm.TIME, _TIME),
    _row("dur", CellForm.TIME, _TIME),
    Field("External id", CellForm.NUMBER, _NUMBER),
    Field("external id", CellForm.NUMBER, _NUMBER),
    Field("Record function id", CellForm.NUMBER, _NUMBER),
    Field("correlation", CellForm.NUMBER, _NUMBER),
    Field("device", CellForm.NUMBER, _NUMBER),
    Field("stream", CellForm.NUMBER, _NUMBER),
    Field("Sequence number", CellForm.NUMBER, _NUMBER),
    Field("Fwd thread id", CellForm.NUMBER, _NUMBER),
    Field("bytes", CellForm.NUMBER, _NUMBER),
    Field("Input Dims", CellForm.TEXT, msgspec.Raw),
    Field("Input type", CellForm.TEXT, msgspec.Raw),
    Field("Collective name", CellForm.TEXT, _TEXT),
    Field("In msg nelems", CellForm.NUMBER, _NUMBER),
    Field("Out msg nelems", CellForm.NUMBER, _NUMBER),
    Field("dtype", CellForm.TEXT, _TEXT),
    Field("Process Group Name", CellForm.TEXT, str | int | None),
    Field("Process Group Ranks", CellForm.TEXT, tuple[int, ...] | str | None),
    Field("Seq", CellForm.NUMBER, _NUMBER),
    Field("Src Rank", CellForm.NUMBER, _NUMBER),
    Field("Dst Rank", CellForm.NUMBER, _NUMBER),
    Field("wait_on_stream", CellForm.NUMBER, _NUMBER),
    Field("wait_on_cuda_event_record_corr_id", CellForm.NUMBER, _NUMBER),
)
