"""The proposal for a running job, stored in its Run directory and shown on the page."""

import time
from pathlib import Path

import msgspec

from esprof.core.disk import read_regular
from esprof.core.errors import InputError, unreadable
from esprof.core.output import write_bytes
from esprof.core.plan import Plan, check
from esprof.core.types import NOT_DECODED, Rank, Time
from esprof.run import files

_MAX_BYTES = 64 << 20


class RankProposal(msgspec.Struct, frozen=True, kw_only=True):
    """The current and the proposed ESTs of a rank."""

    rank: Rank
    device: str | None
    now: tuple[int, ...]
    advised: tuple[int, ...]
    now_us: float
    """Time of its ESTs and the update, without waiting."""
    advised_us: float


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of an EstAdvice that the page shows."""

    value: float
    """Predicted step with the proposal, us."""
    low_us: float
    high_us: float
    gain_pct: float
    """Reduction of the step, in per cent of the current step."""
    error_pct: float
    """Prediction error, in per cent of a step."""
    baselines: dict[str, float]
    """Steps of other assignments, us; `now` is measured."""
    ranks: tuple[RankProposal, ...]
    warnings: tuple[str, ...]
    plan: Plan | None
    """None if no change is recommended."""

    @property
    def gain_range_pct(self) -> tuple[float, float]:
        """Lower and upper bound of the gain."""
        now = self.baselines["now"]
        return 100 * (1 - self.high_us / now), 100 * (1 - self.low_us / now)


class LatestSearch(msgspec.Struct, frozen=True, kw_only=True):
    """The latest search for advice."""

    schema: str = "esprof.latest-search/1"
    time_ns: Time = msgspec.field(default_factory=time.time_ns)
    """End of the search, since the Unix epoch."""
    proposal: Proposal | None = None
    """None if there is none; `offer` in the file."""
    reason: str = ""
    """Why there is none."""


def write_search(run: Path, latest_search: LatestSearch) -> None:
    """Write it to the Run directory. Raises OutputError."""
    write_bytes(run / files.ADVICE, msgspec.json.encode(latest_search))


def read_search(path: Path) -> LatestSearch | None:
    """Read the file; None if it is missing. Raises InputError if it is damaged."""
    try:
        latest_search = msgspec.json.decode(read_regular(path, _MAX_BYTES), type=LatestSearch)
        if latest_search.proposal is not None and latest_search.proposal.plan is not None:
            check(latest_search.proposal.plan)
        if latest_search.proposal is not None and not latest_search.proposal.baselines.get("now"):
            raise InputError("lacks the current step time", path=path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from error
    except NOT_DECODED as error:
        raise InputError(f"holds no proposal: {error}", path=path) from error
    return latest_search
