"""What was advised to a running job, as a file of its Run keeps it for the page."""

import time
from pathlib import Path

import msgspec

from esprof.core.errors import InputError, unreadable
from esprof.core.output import write_bytes
from esprof.core.plan import Plan, check
from esprof.core.types import Ns, Rank
from esprof.run import files

_MAX_BYTES = 64 << 20


class RankOffer(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank runs now, and should run."""

    rank: Rank
    device: str | None
    now: tuple[int, ...]
    advised: tuple[int, ...]
    now_us: float
    """What its ESTs and the update take it, without waiting."""
    advised_us: float


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """Advice as far as the page shows it."""

    value: float
    """Predicted step as advised, us."""
    low_us: float
    high_us: float
    gain_pct: float
    """What the step falls by, in per cent of now."""
    error_pct: float
    """How far off such a prediction may be, in per cent of a step."""
    baselines: dict[str, float]
    """Step otherwise, us; `now` is as measured."""
    ranks: tuple[RankOffer, ...]
    warnings: tuple[str, ...]
    plan: Plan | None
    """None where the advice is to keep what there is."""

    @property
    def gain_range_pct(self) -> tuple[float, float]:
        """The interval of the gain: what the step falls by at the least and at the most."""
        now = self.baselines["now"]
        return 100 * (1 - self.high_us / now), 100 * (1 - self.low_us / now)


class LatestSearch(msgspec.Struct, frozen=True, kw_only=True):
    """The latest search for advice."""

    schema: str = "esprof.advice-looked/1"
    time_ns: Ns = msgspec.field(default_factory=time.time_ns)
    """When it ended, since the Unix epoch."""
    offer: Offer | None = None
    """None where there was no advice to be had."""
    reason: str = ""
    """Why there was none."""


def write_search(run: Path, looked: LatestSearch) -> None:
    """Keep it in the Run directory. Raises OutputError."""
    write_bytes(run / files.ADVICE, msgspec.json.encode(looked))


def read_search(path: Path) -> LatestSearch | None:
    """What the file holds; None where there is none. Raises InputError where it is broken."""
    try:
        with path.open("rb") as file:
            looked = msgspec.json.decode(file.read(_MAX_BYTES), type=LatestSearch)
        if looked.offer is not None and looked.offer.plan is not None:
            check(looked.offer.plan)
        if looked.offer is not None and not looked.offer.baselines.get("now"):
            raise InputError("does not tell what a step takes now", path=path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"holds no advice: {error}", path=path) from error
    return looked
