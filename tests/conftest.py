"""What holds for all tests."""

import pytest

BEDS = ("test_many_hosts.py", "test_testbed.py", "test_testbed_jobs.py")


@pytest.hookimpl(tryfirst=True)  # Before xdist looks for the groups.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file on one worker, for they share what it made, and so do those of all beds, which see each
    other. Give those with real processes a second try: others may need the machine just then. What fails twice is wrong."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group("bed" if item.path.name in BEDS else str(item.path)))
        if item.get_closest_marker("integration") and not item.get_closest_marker("soak"):
            item.add_marker(pytest.mark.flaky(reruns=1, reruns_delay=3))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name what needed the second try: it is no green."""
    again = terminalreporter.stats.get("rerun", [])
    terminalreporter.section("second tries")
    terminalreporter.write_line(f"{len(again)} tests needed a second try")
    for report in again:
        terminalreporter.write_line(f"  {report.nodeid}: {report.longreprtext.splitlines()[-1]}")
