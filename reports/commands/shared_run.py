"""`esprof export --format run`: a Run directory to share."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from esprof.analyzers.sharing.shared import shared
from esprof.core import readable
from esprof.core.errors import UsageError
from esprof.core.types import ns
from esprof.reports.commands.common import open_run, refuse_stdout, status, wrote
from esprof.reports.commands.written import answer_written
from esprof.reports.export.run_folder import SharedAnswer, bytes_in, write_shared
from esprof.run.directory import claim_run, read_run


@dataclass(frozen=True)
class RunToShare:
    """What `esprof export --format run` is to write."""

    sources: Sequence[str]
    output: Path
    force: bool
    redact: bool
    shrink: bool
    max_error_pct: float
    window: int | None

    def export(self, *, as_json: bool) -> None:
        """Write the Run directory, and say what was left out and preserved."""
        refuse_stdout(self.output)
        self._keep_sources()
        claim_run(self.output, force=self.force)
        run, _ = open_run(self.sources, self.window)
        with status("Preparing the run") as progress:
            ready = shared(run, redact=self.redact, shrink=self.shrink, max_error_pct=self.max_error_pct, tell=progress)
        with status("Writing the run"):
            answer = write_shared(
                ready, self.output, self.sources, redacted=self.redact, max_error_pct=self.max_error_pct
            )
        self._say(answer)
        wrote("run", self.output)
        if as_json:
            written = read_run(self.output)
            answer_written("run", self.output, written, written.warnings, answer)

    def _keep_sources(self) -> None:
        whole = self.output.resolve()
        for source in self.sources:
            if Path(source).resolve().is_relative_to(whole) or whole.is_relative_to(Path(source).resolve()):
                raise UsageError(f"the output overlaps with the input {source}", remedy="Choose another name.")

    def _say(self, answer: SharedAnswer) -> None:
        if answer.changed_from is not None:
            _line(f"Without names the diagnosis is another: {answer.preserved}, before {answer.changed_from}")
        if self.shrink:
            for one in answer.left_out:
                fewer = one.events_after < one.events_before
                events = f" ({one.events_before:,} → {one.events_after:,} events)" if fewer else ""
                _line(f"Left out {one.what}{events}")
            if not answer.left_out:
                _line("Nothing can be left out")
            _line(f"Preserved {answer.preserved}{_now(answer)}")
            size = bytes_in(self.output)
            _line(f"Size {readable.size(answer.bytes_before)} → {readable.size(size)}")


def _now(answer: SharedAnswer) -> str:
    if answer.step_us is None:
        return ""
    saving = f"{readable.duration(ns(answer.saving_us))} of " if answer.saving_us else ""
    return f"; now {saving}{readable.duration(ns(answer.step_us))}"


def _line(text: str) -> None:
    click.echo(text, err=True)
