"""A Run to share: without the names of its job, or smaller, or both, with the verdict of the original."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from esprof.analyzers.diagnosis import diagnose
from esprof.analyzers.sharing.redaction.contents import redacted_contents
from esprof.analyzers.sharing.shrink import LeftOut, shrunk
from esprof.analyzers.sharing.verdict import SharedVerdict
from esprof.core.errors import InputError
from esprof.replay.whatif.pricing import MAX_ERROR_PCT
from esprof.run.run import Run
from esprof.run.sharing.contents import RunContents


@dataclass(frozen=True)
class SharedRun:
    """Contents for a new Run directory."""

    contents: RunContents
    verdict: SharedVerdict | None
    """What it must preserve; None if the original has no diagnosis."""
    verdict_changed_from: SharedVerdict | None = None
    """The verdict of the original, if names that were replaced matter to it; None if they do not."""
    left_out: tuple[LeftOut, ...] = ()
    """What was left out to make it smaller."""

    def verdict_of(self, run: Run, max_error_pct: float = MAX_ERROR_PCT) -> SharedVerdict | None:
        """The verdict of `run`, which was written from these contents; None if the original has none."""
        return None if self.verdict is None else SharedVerdict.of(diagnose(run, max_error_pct=max_error_pct))


def shared(
    run: Run,
    *,
    redact: bool,
    shrink: bool,
    max_error_pct: float = MAX_ERROR_PCT,
    tell: Callable[[str], None] = lambda what: None,
) -> SharedRun:
    """Make `run` ready to share. `tell` gets what is being done.

    Raises InputError if the run is to be made smaller and has no diagnosis that a smaller one could preserve.
    """
    contents = RunContents.of(run)
    tell("diagnosis")
    verdict = _verdict(run, max_error_pct)
    if shrink and verdict is None:
        reason = "cannot be made smaller: it has neither a finding nor a step, so nothing says what matters in it"
        raise InputError(reason, path=run.path, remedy="Leave out --shrink.")
    changed_from = None
    if redact:
        tell("names")
        contents = redacted_contents(contents)
        if verdict is not None:
            redacted = SharedVerdict.of(diagnose(contents.run(), max_error_pct=max_error_pct))
            renamed = replace(verdict, title=redacted.title, places=redacted.places)
            changed_from = None if renamed.is_kept_by(redacted) else verdict
            verdict = redacted if changed_from else renamed
    if not shrink or verdict is None:
        return SharedRun(contents, verdict, changed_from)
    contents, left_out = shrunk(contents, partial(_has_verdict, verdict, max_error_pct), tell)
    return SharedRun(contents, verdict, changed_from, left_out)


def _verdict(run: Run, max_error_pct: float) -> SharedVerdict | None:
    """None for a run that cannot be diagnosed, or of which the diagnosis says nothing."""
    try:
        found = SharedVerdict.of(diagnose(run, max_error_pct=max_error_pct))
    except InputError:
        return None
    return None if found.id is None and found.step_us is None else found


def _has_verdict(verdict: SharedVerdict, max_error_pct: float, contents: RunContents) -> bool:
    try:
        return verdict.is_kept_by(SharedVerdict.of(diagnose(contents.run(), max_error_pct=max_error_pct)))
    except Exception:  # noqa: BLE001  No job writes such a Run: a rule may fail on it in any way. It is not what is searched.
        return False
