"""Logs of evaluations: the loss or score of a training after steps and seconds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pandas as pd

from esprof.core.errors import InputError, UsageError, unreadable

Column = Literal["step", "time", "metric"]

_USUAL: Mapping[Column, Sequence[str]] = {
    "step": ("step", "global_step", "iteration"),
    "time": ("time", "seconds", "accumulated_submission_time"),
    "metric": ("loss", "eval_loss", "val_loss", "validation/loss"),
}
"""Names of the columns in common logs, among them those of MLCommons' AlgoPerf; the first that occurs is taken."""
_REMEDY = "Name the columns: --columns step=STEP,time=SECONDS,metric=LOSS."


@dataclass(frozen=True, kw_only=True)
class Evaluations:
    """The evaluations of one training, ascending in steps and time."""

    path: Path
    step: np.ndarray | None
    """float64[n]; None if the log lacks them."""
    time_s: np.ndarray | None
    """Seconds since the start of the training, float64[n]; None if the log lacks them."""
    value: np.ndarray
    """float64[n]."""


def read_evaluations(path: Path, columns: Mapping[str, str]) -> Evaluations:
    """The rows with a metric of a table in CSV, or in JSON lines (`.jsonl`); `columns` names its columns.

    Raises UsageError for an unknown key of `columns`, and InputError if the log is invalid.
    """
    if unknown := set(columns) - set(get_args(Column)):
        raise UsageError(f"--columns names {min(unknown)!r}, which no log of evaluations has", remedy=_REMEDY)
    table = _table(path)
    metric = _numbers(table, "metric", columns, path)
    if metric is None:
        raise InputError("has no column of a loss", path=path, remedy=_REMEDY)
    known = ~np.isnan(metric)
    if not known.any():
        raise InputError("has no evaluation", path=path, remedy=_REMEDY)
    step, time_s = (_ascending(table, name, columns, path, known) for name in ("step", "time"))
    if step is None and time_s is None:
        raise InputError("has neither steps nor times", path=path, remedy=_REMEDY)
    return Evaluations(path=path, step=step, time_s=time_s, value=metric[known])


def _table(path: Path) -> pd.DataFrame:
    try:
        return pd.read_json(path, lines=True) if path.suffix == ".jsonl" else pd.read_csv(path, compression=None)
    except OSError as error:
        raise unreadable(path, error) from error
    except (TypeError, ValueError, RecursionError) as error:  # pandas' own errors are ValueErrors.
        raise InputError(f"is not a log of evaluations ({error})", path=path, remedy="It is CSV or .jsonl.") from error


def _numbers(table: pd.DataFrame, name: Column, columns: Mapping[str, str], path: Path) -> np.ndarray | None:
    """The column, float64[rows]; None if the table has no usual one. Raises InputError if it is not of numbers."""
    asked = columns.get(name)
    if asked is not None and asked not in table:
        listed = ", ".join(map(str, table.columns))
        raise InputError(f"has no column {asked!r}, only {listed}", path=path, remedy=_REMEDY)
    found = asked or next((usual for usual in _USUAL[name] if usual in table), None)
    if found is None:
        return None
    try:
        numbers: np.ndarray = table[found].to_numpy(float)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"column {found!r} holds other values than numbers ({error})", path=path) from error
    return numbers


def _ascending(
    table: pd.DataFrame, name: Column, columns: Mapping[str, str], path: Path, known: np.ndarray
) -> np.ndarray | None:
    found = _numbers(table, name, columns, path)
    if found is None:
        return None
    rows: np.ndarray = found[known]
    # A NaN compares false, and so fails too.
    if not (np.diff(rows) >= 0).all() or not np.isfinite(rows).all() or rows[0] < 0:
        raise InputError(
            f"its column of {name}s does not ascend from 0 on",
            path=path,
            remedy="After a restart, leave out the evaluations that were repeated.",
        )
    return rows
