"""What holds for all tests."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests with real processes another try: others may need the machine just then. What fails each time is wrong."""
    for item in items:
        if item.get_closest_marker("integration") and not item.get_closest_marker("soak"):
            item.add_marker(pytest.mark.flaky(reruns=2, reruns_delay=3))
