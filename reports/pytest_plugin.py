"""A pytest plugin: the fixture `esprof_check`, and `--esprof-baseline`.

Every pytest session loads this module, so that it imports the rest on first use.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from esprof.core.errors import EsprofError, UsageError

Checker = Callable[..., None]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("esprof", "step time of training jobs")
    group.addoption(
        "--esprof-baseline",
        metavar="FOLDER",
        type=Path,
        help="Compare the runs of `esprof_check` with the baselines in FOLDER, one file for each test.",
    )
    group.addoption(
        "--esprof-append", action="store_true", help="Add the runs that did not regress to their baselines."
    )


@pytest.fixture
def esprof_check(request: pytest.FixtureRequest) -> Checker:
    """`esprof_check(["python", "train.py"], "step_time:+5%")` records the command, and fails if it is slower than the
    baseline of this test. A Run directory may take the place of the command."""
    folder: Path | None = request.config.getoption("--esprof-baseline")
    append: bool = request.config.getoption("--esprof-append")
    baseline = None if folder is None else folder / f"{_file_name(request.node.nodeid)}.json"

    def check(job: str | Path | Sequence[str], *rules: str) -> None:
        with TemporaryDirectory() as scratch:
            run = Path(job) if isinstance(job, str | Path) else _recorded(job, Path(scratch) / "run")
            if baseline is None:
                pytest.skip("recorded; nothing to compare with (--esprof-baseline)")
            _compare(run, baseline, rules, append=append)

    return check


def _file_name(test: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in test)


def _recorded(command: Sequence[str], out: Path) -> Path:
    """Record a command into `out`. Fails the test if the command does."""
    from esprof.recorder.launcher.launch import collect, launch, prepare
    from esprof.run.raw.settings import Settings

    settings = Settings()
    exit_code = launch(command, prepare(command, out, settings))
    recording = collect(command, out, settings, exit_code)
    if exit_code or recording.run is None:
        pytest.fail(f"the command ended with {exit_code}: {recording.trouble or 'see its output'}", pytrace=False)
    return out


def _compare(run: Path, file: Path, rules: Sequence[str], *, append: bool) -> None:
    """Check a run against the baseline in `file`, which is created if it is missing."""
    import msgspec

    from esprof import load
    from esprof.analyzers.gate.baseline import choose_phase, decode, measure
    from esprof.analyzers.gate.check import Options, check
    from esprof.analyzers.gate.rules import parse_rule
    from esprof.analyzers.steps.job_steps import JobSteps
    from esprof.core.output import write_bytes
    from esprof.reports.terminal.check import render_text

    try:
        options = Options(rules=tuple(map(parse_rule, rules or ("step_time:+5%",))))
    except UsageError as error:
        pytest.fail(str(error), pytrace=False)
    try:
        steps = JobSteps(load(run))
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(file, msgspec.json.encode(measure(steps, choose_phase(steps, options.min_steps))))
            pytest.skip(f"saved the first baseline in {file}")
        before = decode(file.read_bytes(), file)
        now = measure(steps, before.phase)
        checked = check(before, now, options, steps.run.warnings)
    except EsprofError as error:
        pytest.fail(str(error), pytrace=False)
    if checked.outcome == "regressed":
        pytest.fail(render_text(checked), pytrace=False)
    if append:
        write_bytes(file, msgspec.json.encode(before.with_run(now)))
