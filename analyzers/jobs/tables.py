"""Tables of job logs in CSV, all columns as texts."""

import csv
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.csv

from esprof.core.errors import InputError, unreadable


def first_columns(path: Path) -> list[str]:
    """The fields of the first line. Raises InputError if it is no text."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return next(csv.reader(file), [])
    except OSError as error:
        raise unreadable(path, error) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"is no text ({error})", path=path, remedy="Unpack it first.") from error


def read_table(path: Path, columns: Sequence[str], *, wanted: Sequence[str] | None = None) -> pd.DataFrame:
    """The columns `wanted`, else all, as texts, of a table whose first line holds the names, or that has these `columns`.

    Raises InputError if the table has no row, or a line has another number of fields.
    """
    has_names = columns[0] in first_columns(path)
    reading = pyarrow.csv.ReadOptions(column_names=None if has_names else list(columns))
    names = list(wanted or columns)
    converting = pyarrow.csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()), include_columns=names, strings_can_be_null=True
    )
    try:
        with path.open("rb") as file:
            table = pyarrow.csv.read_csv(file, read_options=reading, convert_options=converting)
    except OSError as error:
        raise unreadable(path, error) from error
    except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
        raise InputError(f"is not a table of jobs ({error})", path=path) from error
    if not table.num_rows:
        raise InputError("lists no job", path=path)
    return table.to_pandas()
