"""Decode JSON some of whose values have an unexpected type: keep what fits, leave out the rest, and count it.

Strict decoding is several times faster and comes first; this is for the file in which it fails.
"""

from dataclasses import dataclass
from typing import Any, get_args, get_origin

import msgspec

_MISFIT: Any = object()


@dataclass
class Misfits:
    """Values that were left out: how many, and what was wrong with the first."""

    count: int = 0
    first: str = ""

    def note(self, error: msgspec.ValidationError) -> Any:
        self.count += 1
        self.first = self.first or str(error)
        return _MISFIT


def decode(raw: bytes, wanted: Any) -> tuple[Any, Misfits]:
    """`raw` as a `wanted`: a Struct without the fields whose values do not fit, or a list without such items.

    Numbers and booleans written as text are taken for what they say. Raises msgspec.ValidationError where nothing fits
    at the outermost level, msgspec.DecodeError where `raw` is no JSON.
    """
    misfits = Misfits()
    value = _fit(msgspec.Raw(raw), wanted, misfits)
    if value is _MISFIT:
        raise msgspec.ValidationError(misfits.first)
    return value, misfits


def _fit(raw: msgspec.Raw, wanted: Any, misfits: Misfits) -> Any:
    try:
        return msgspec.json.decode(raw, type=wanted, strict=False)
    except msgspec.ValidationError as error:
        if get_origin(wanted) is list:
            return _fit_items(raw, get_args(wanted)[0], misfits)
        for choice in (wanted, *get_args(wanted)):
            if isinstance(choice, type) and issubclass(choice, msgspec.Struct):
                return _fit_fields(raw, choice, misfits)
        return misfits.note(error)


def _fit_items(raw: msgspec.Raw, wanted: Any, misfits: Misfits) -> Any:
    try:
        items = msgspec.json.decode(raw, type=list[msgspec.Raw])
    except msgspec.ValidationError as error:
        return misfits.note(error)
    fitted = (_fit(item, wanted, misfits) for item in items)
    return [value for value in fitted if value is not _MISFIT]


def _fit_fields(raw: msgspec.Raw, wanted: type[msgspec.Struct], misfits: Misfits) -> Any:
    try:
        given = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError as error:
        return misfits.note(error)
    values = {}
    for known in msgspec.structs.fields(wanted):
        value = _fit(given[known.encode_name], known.type, misfits) if known.encode_name in given else _MISFIT
        if value is not _MISFIT:
            values[known.name] = value
        elif known.required:
            return misfits.note(msgspec.ValidationError(f"Object missing required field `{known.encode_name}`"))
    return wanted(**values)
