"""The options of `esprof compare --to-loss`, and its answer."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from glob import glob, has_magic
from pathlib import Path
from typing import TYPE_CHECKING

import click

from esprof.core.errors import InputError, UsageError
from esprof.reports.commands.common import answer, named_columns

if TYPE_CHECKING:
    from esprof.analyzers.comparison.target_answer import Better


@dataclass(frozen=True)
class Target:
    """What trainings shall reach, and the logs of those of the other side."""

    loss: float | None
    score: float | None
    others: tuple[str, ...]
    window: int

    @property
    def is_asked(self) -> bool:
        """Whether trainings are to be compared, and not two runs. Raises UsageError if the options contradict each other."""
        if self.loss is not None and self.score is not None:
            raise UsageError("--to-loss and --to-score exclude each other")
        asked = self.loss is not None or self.score is not None
        if asked != bool(self.others):
            raise UsageError("--with needs --to-loss or --to-score, and they need --with")
        return asked

    def answer(self, logs: Sequence[str], *, as_json: bool, output: Path, force: bool) -> None:
        """Write whether the trainings of the other side reach the target sooner than those of `logs`."""
        from esprof.analyzers.comparison.evaluations import read_evaluations
        from esprof.analyzers.comparison.to_target import compare_to_target
        from esprof.reports.terminal.to_target import draw_to_target

        better: Better = "lower" if self.score is None else "higher"
        value = self.loss if self.score is None else self.score
        assert value is not None
        if not math.isfinite(value):
            raise UsageError("the target must be a finite number")
        a, b = ([read_evaluations(path, named_columns()) for path in _files(given)] for given in (logs, self.others))
        found = compare_to_target(a, b, value, better, self.window)
        answer(found, draw_to_target, as_json=as_json, output=output, force=force)


def target_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of targets to a command, which gets them as `target`, a `Target`."""

    @click.option(
        "--to-loss", type=float, metavar="L", help="Compare trainings: which reach a loss of at most L sooner?"
    )
    @click.option("--to-score", type=float, metavar="S", help="The same with a score of at least S.")
    @click.option(
        "--with",
        "others",
        multiple=True,
        metavar="B",
        help="With --to-loss or --to-score: the log of a training of the other side, or a quoted glob pattern. Repeatable.",
    )
    @click.option(
        "--median-of",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        metavar="N",
        help="With --to-loss or --to-score: the median of the last N evaluations has to reach it.",
    )
    @wraps(command)
    def with_target(
        *given: object,
        to_loss: float | None,
        to_score: float | None,
        others: tuple[str, ...],
        median_of: int,
        **rest: object,
    ) -> None:
        command(*given, target=Target(to_loss, to_score, others, median_of), **rest)

    return with_target


def _files(given: Sequence[str]) -> list[Path]:
    """The files of names and glob patterns, in order. Raises InputError for a pattern without one."""
    found: list[Path] = []
    for name in given:
        matches = sorted(glob(name, recursive=True)) if has_magic(name) else [name]
        if not matches:
            raise InputError("matches no file", path=name)
        found += map(Path, matches)
    return found
