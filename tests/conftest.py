"""What holds for all tests."""

import gc
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import settings

ROOT = Path(__file__).parents[1]

# No test is timed: the first example may compile, and others may need the machine.
settings.register_profile("esprof", settings(), deadline=None)
settings.register_profile("thorough", settings(), deadline=None)
settings.load_profile("esprof")


def _installed() -> Path:
    """The checkout that this environment was made for."""
    url = json.loads(metadata.distribution("esprof").read_text("direct_url.json") or "{}").get("url", "")
    return Path(url.removeprefix("file://"))


def pytest_configure() -> None:
    """Undo what a shell leaves to the processes that tests start: background jobs of a script ignore Ctrl-C."""
    gc.set_threshold(50_000)  # At the default of 700, a tenth of the tests' time is garbage collection.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # It would come before what a test installs in an environment of its own.
    os.environ.pop("PYTHONPATH", None)
    if not ROOT.samefile(_installed()):
        os.environ["PYTHONPATH"] = str(
            ROOT
        )  # The environment of another checkout: processes of tests take this one's code.
    os.environ.pop("COLUMNS", None)  # pytest-xdist sets it; answers would be as wide as that.
    # Containers often set it; each of the hundreds of processes that tests start would compile esprof and torch anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


@pytest.hookimpl(tryfirst=True)  # Before -m takes tests away.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests with real processes a second try: others may need the machine just then. What fails twice is wrong."""
    unmarked = [item.nodeid for item in items if not _is_integration_where_it_should(item)]
    if unmarked:
        raise pytest.UsageError(
            "not marked integration, though in tests/integration or marked promise: " + ", ".join(unmarked)
        )
    for item in items:
        if item.get_closest_marker("integration") and not item.get_closest_marker("soak"):
            item.add_marker(pytest.mark.flaky(reruns=1, reruns_delay=3))
        for marker in item.iter_markers("compat"):
            item.user_properties.append(("compat", marker.args[0]))  # For the report of `make compat`.


def pytest_collection_finish() -> None:
    """Exempt modules and tests from garbage collection: they stay until the end, and each collection would visit them."""
    gc.collect()
    gc.freeze()


def _is_integration_where_it_should(item: pytest.Item) -> bool:
    """Whether the tiers take the test for what it is: those of its folder, and those that keep a promise."""
    should = ROOT / "tests" / "integration" in item.path.parents or item.get_closest_marker("promise")
    return not should or item.get_closest_marker("integration") is not None


@pytest.fixture(scope="session", autouse=True)
def _caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the answers that tests store. Compiled code stays where it is, for all tests."""
    compiled = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    caches = tmp_path_factory.mktemp("caches")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NUMBA_CACHE_DIR", os.path.expanduser(compiled))
        patch.setenv("XDG_CACHE_HOME", str(caches))
        yield caches


@pytest.fixture(autouse=True)
def _no_earlier_answers(_caches: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test gets the answer of another one, which may have replaced code."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(_caches / f"{abs(hash(request.node.nodeid)):x}"))


@pytest.fixture(scope="module")
def no_other_beds() -> Iterator[None]:
    """Hosts of the test bed are seen by all of the machine: of the modules that make some, one is at work at a time."""
    with FileLock(Path(tempfile.gettempdir()) / "esprof-beds.lock"):
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name what needed the second try: it is no green."""
    again = terminalreporter.stats.get("rerun", [])
    terminalreporter.section("second tries")
    terminalreporter.write_line(f"{len(again)} tests needed a second try")
    for report in again:
        terminalreporter.write_line(f"  {report.nodeid}: {report.longreprtext.splitlines()[-1]}")
