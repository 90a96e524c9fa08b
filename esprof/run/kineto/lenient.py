"""Decode JSON some of whose values have an unexpected type: keep what fits, leave out the rest, and count it."""

from dataclasses import dataclass
from functools import cache
from typing import Any, get_args, get_origin

import msgspec

_MISFIT: Any = object()


@dataclass
class Misfits:
    """Values that were left out: how many, and what was wrong with the first."""

    count: int = 0
    first: str = ""

    def note(self, error: msgspec.ValidationError, times: int = 1) -> Any:
        self.count += times
        self.first = self.first or str(error)
        return _MISFIT


def decode(raw: bytes, wanted: Any, misfits: Misfits, times: int = 1) -> Any:
    """Decode `raw` as `wanted`: a Struct without the fields whose values do not fit, a list without the items that do not
    fit, or None where nothing fits. What is left out counts `times`, as often as `raw` stands in the file.

    Numbers and booleans written as text are converted, where text would not fit. Raises msgspec.DecodeError or
    UnicodeDecodeError where `raw` is no JSON.
    """
    try:
        return _decoder(wanted).decode(raw)
    except msgspec.ValidationError:
        value = _fit(msgspec.Raw(raw), wanted, misfits, times)
        return None if value is _MISFIT else value


def prepare(wanted: Any) -> None:
    """Make ready to decode `wanted`, a type with a Struct in it: docs/decisions/0002-libraries.md."""
    _decoder(wanted)


@cache
def _decoder(wanted: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(wanted)


def _fit(raw: msgspec.Raw, wanted: Any, misfits: Misfits, times: int) -> Any:
    try:
        return msgspec.json.decode(raw, type=wanted, strict=False)
    except msgspec.ValidationError as error:
        if get_origin(wanted) is list:
            return _fit_items(raw, get_args(wanted)[0], misfits, times)
        for choice in (wanted, *get_args(wanted)):
            if isinstance(choice, type) and issubclass(choice, msgspec.Struct):
                return _fit_fields(raw, choice, misfits, times)
        return misfits.note(error, times)


def _fit_items(raw: msgspec.Raw, wanted: Any, misfits: Misfits, times: int) -> Any:
    try:
        items = msgspec.json.decode(raw, type=list[msgspec.Raw])
    except msgspec.ValidationError as error:
        return misfits.note(error, times)
    fitted = (_fit(item, wanted, misfits, times) for item in items)
    return [value for value in fitted if value is not _MISFIT]


def _fit_fields(raw: msgspec.Raw, wanted: type[msgspec.Struct], misfits: Misfits, times: int) -> Any:
    try:
        given = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError as error:
        return misfits.note(error, times)
    values = {}
    for known in msgspec.structs.fields(wanted):
        if known.encode_name in given:
            value = _fit(given[known.encode_name], known.type, misfits, times)
            if value is not _MISFIT:
                values[known.name] = value
    return wanted(**values)
