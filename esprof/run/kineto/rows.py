"""The rows of a scanned trace, column by column. What a value means is found out once for each distinct one."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

import msgspec
import numpy as np

from esprof.run.kineto.fields import FIELDS, CellForm
from esprof.run.kineto.lenient import Misfits, decode
from esprof.run.kineto.scan import FIRST_TEXT, MISSING, NotJson, Scan

_PLACE = {field.key: i for i, field in enumerate(FIELDS)}
_NUMBER_AT_END = re.compile(r"(?:^|\s)(-?\d{1,19})$", re.ASCII)
_INT64 = np.iinfo(np.int64)


@dataclass(frozen=True)
class Texts:
    """A column of texts: for each row the number of one of `values`, which are distinct, or -1."""

    codes: np.ndarray
    values: list[Any]

    def map(self, function: Callable[[Any], Any], dtype: Any = object, missing: Any = None) -> np.ndarray:
        """`function` of each row's text, and `missing` where there is none."""
        found = np.full(len(self.values) + 1, missing, dtype)  # The last one is what code -1 finds.
        # Counting the codes tells which values are in use; [1:] leaves out the count of code -1.
        for code in np.flatnonzero(np.bincount(self.codes + 1)[1:]).tolist():
            found[code] = function(self.values[code])
        spread: np.ndarray = found[self.codes]
        return spread

    def each(self, function: Callable[[Any], Any]) -> "Texts":
        """The column with `function` of each value."""
        return Texts(self.codes, [function(value) for value in self.values])

    def filled(self, value: Any) -> "Texts":
        """The column with `value` where there was none."""
        if (self.codes >= 0).all():
            return self
        values = self.values if value in self.values else [*self.values, value]
        return Texts(np.where(self.codes < 0, values.index(value), self.codes), values)


class TraceRows:
    """The rows of a trace as columns, by the keys that the trace has for them.

    A value that does not fit is missing, and counted in `misfits` once its column is asked for; where it is no JSON, asking
    raises NotJson.
    """

    def __init__(self, scan: Scan, misfits: Misfits) -> None:
        self._scan = scan
        self._misfits = misfits
        self._columns: dict[str, Any] = {}
        self._picked: np.ndarray | None = None

    def __len__(self) -> int:
        return self._scan.cells.shape[1] if self._picked is None else len(self._picked)

    def pick(self, rows: np.ndarray) -> "TraceRows":
        """The rows with these numbers, in this order."""
        picked = TraceRows(self._scan, self._misfits)
        picked._columns = self._columns
        picked._picked = rows if self._picked is None else self._picked[rows]
        return picked

    def completed(self, texts: Mapping[str, Texts], numbers: Mapping[str, np.ndarray]) -> "TraceRows":
        """The rows with these columns, by key, where they have no value of their own."""
        completed = self.pick(np.arange(len(self)))
        completed._columns = dict(self._columns)
        picked, count = completed._picked, self._scan.cells.shape[1]
        for key, column in texts.items():
            own = self.texts(key)
            distinct = {value: code for code, value in enumerate(own.values)}
            given = np.array([*(distinct.setdefault(value, len(distinct)) for value in column.values), -1], np.int64)
            codes = np.full(count, -1, np.int64)
            codes[picked] = np.where(own.codes >= 0, own.codes, given[column.codes])
            completed._columns[key] = Texts(codes, list(distinct))
        for key, values in numbers.items():
            cells = np.full(count, MISSING, np.int64)
            cells[picked] = np.where(self.numbers(key) == MISSING, values, self.numbers(key))
            completed._columns[key] = cells
        return completed

    def numbers(self, key: str) -> np.ndarray:
        """An int64 column (times in ns), MISSING where there is no number. Text that ends in a number counts as that one."""
        if key not in self._columns:
            self._columns[key] = self._all_numbers(key)
        numbers: np.ndarray = self._columns[key]
        return numbers if self._picked is None else numbers[self._picked]

    def texts(self, key: str) -> Texts:
        """A column of texts, or of whatever else the field may hold."""
        if key not in self._columns:
            self._columns[key] = self._all_texts(key)
        texts: Texts = self._columns[key]
        return texts if self._picked is None else Texts(texts.codes[self._picked], texts.values)

    def written(self, key: str) -> Texts:
        """The values of a column of numbers that are written as text; -1 for all others."""
        cells: np.ndarray = self._scan.cells[_PLACE[key]]
        is_text = (cells >= FIRST_TEXT) & (cells < FIRST_TEXT + len(self._scan.texts))
        codes, values = self._decoded(key, cells[is_text])
        column = np.full(len(cells), -1, np.int64)
        column[is_text] = codes
        texts = Texts(column, [value if isinstance(value, str) else "" for value in values])
        return texts if self._picked is None else Texts(texts.codes[self._picked], texts.values)

    def _all_numbers(self, key: str) -> np.ndarray:
        cells: np.ndarray = self._scan.cells[_PLACE[key]]
        is_text = (cells >= FIRST_TEXT) & (cells < FIRST_TEXT + len(self._scan.texts))
        if is_text.any():
            meaning = _nanoseconds if FIELDS[_PLACE[key]].form is CellForm.TIME else _integer
            codes, values = self._decoded(key, cells[is_text])
            cells = cells.copy()
            cells[is_text] = np.array([meaning(value) for value in values], np.int64)[codes]
        return cells

    def _all_texts(self, key: str) -> Texts:
        cells = self._scan.cells[_PLACE[key]]
        is_text = cells != MISSING
        codes, values = self._decoded(key, cells[is_text])
        distinct: dict[Any, int] = {}
        # Two spellings (escapes, spaces) may be one text.
        new = [-1 if value is None else distinct.setdefault(value, len(distinct)) for value in values]
        column = np.full(len(cells), -1, np.int64)
        column[is_text] = np.array(new, np.int64)[codes]
        return Texts(column, list(distinct))

    def _decoded(self, key: str, cells: np.ndarray) -> tuple[np.ndarray, list[Any]]:
        """The place of each cell's value in a list of decoded values, and that list. All `cells` must be texts."""
        # Each text in use is decoded once: `numbers` leads from the text's number to its place in `values`.
        texts, wanted = self._scan.texts, FIELDS[_PLACE[key]].type
        counts = np.bincount(cells - FIRST_TEXT, minlength=len(texts))
        used = np.flatnonzero(counts)
        numbers = np.zeros(len(texts), np.int64)
        numbers[used] = np.arange(len(used))
        values = [self._value(texts[i], wanted, int(counts[i])) for i in used.tolist()]
        return numbers[cells - FIRST_TEXT], values

    def _value(self, text: bytes, wanted: Any, count: int) -> Any:
        try:
            value = decode(text, wanted, self._misfits, count)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise NotJson(f"{error} in a value") from error
        return bytes(value) if isinstance(value, msgspec.Raw) else value


def _integer(value: float | str | None) -> int:
    if isinstance(value, str):
        digits = _NUMBER_AT_END.search(value.strip())
        value = int(digits.group(1)) if digits else None
    if value is None or value != value or not _INT64.min < value <= _INT64.max:
        return MISSING
    return int(value)


def _nanoseconds(us: Decimal | None) -> int:
    # Decimal itself raises where an exponent is beyond all reason.
    if us is None or not us.is_finite() or us.adjusted() > 15:
        return MISSING
    return _integer(int((us * 1000).to_integral_value(ROUND_HALF_EVEN)))
