"""The part of `esprof recommend` that searches sets of changes: its options, and the search."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps

import click

from esprof.analyzers.advisors.search.advise import MAX_REPLAYS, advise_changes
from esprof.analyzers.advisors.search.answer import SearchAdvice
from esprof.core.errors import UsageError
from esprof.replay.replayed import Replayed
from esprof.run.run import Run


@dataclass(frozen=True)
class Search:
    """The options of the search."""

    is_asked: bool
    tries: tuple[str, ...]
    max_replays: int | None
    max_memory_gb: float | None

    def refuse(self, *, excluded: bool) -> None:
        """Raise UsageError for options of the search without it, or for `excluded` options with it."""
        if not self.is_asked and (self.tries or self.max_replays is not None or self.max_memory_gb is not None):
            raise UsageError("--try, --max-replays and --max-memory-gb need --search")
        if self.is_asked and excluded:
            raise UsageError("--search needs RUN, and excludes --only, --inventory, --max-overhead and --mtbf")

    def advise(self, run: Run, max_vnmse: float) -> SearchAdvice:
        """The best set of changes of one job."""
        limit = MAX_REPLAYS if self.max_replays is None else self.max_replays
        memory = None if self.max_memory_gb is None else round(self.max_memory_gb * 1e9)
        return advise_changes(Replayed.of(run), self.tries, max_vnmse=max_vnmse, max_replays=limit, max_memory=memory)


def search_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options of the search to a command, which gets them as `wider`, a `Search`."""

    @click.option("--search", is_flag=True, help="With RUN: recommend the best set of changes together.")
    @click.option(
        "--try",
        "tries",
        multiple=True,
        metavar="TERM",
        help="With --search: another possible change, a what-if term such as `cache=0.5`. May be repeated.",
    )
    @click.option(
        "--max-replays",
        type=click.IntRange(0),
        metavar="N",
        help=f"With --search: replay about N sets of changes at most. Default: {MAX_REPLAYS}.",
    )
    @click.option(
        "--max-memory-gb",
        type=click.FloatRange(0, min_open=True),
        metavar="GB",
        help="With --search: peak memory that a rank may need, 10^9 bytes. Needs a run recorded with --memory.",
    )
    @wraps(command)
    def with_search(
        *given: object,
        search: bool,
        tries: tuple[str, ...],
        max_replays: int | None,
        max_memory_gb: float | None,
        **others: object,
    ) -> int:
        return command(*given, wider=Search(search, tries, max_replays, max_memory_gb), **others)

    return with_search
