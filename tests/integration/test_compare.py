"""`esprof compare` of two recorded jobs, of which one has a slower line."""

import json

import pytest

from tests.cases.command_line import esprof
from tests.cases.record import job, record

pytestmark = [pytest.mark.integration, pytest.mark.promise]

SLOWER_MS = 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run (`before`), and one whose line sleeps `SLOWER_MS` longer (`after`)."""
    folder = tmp_path_factory.mktemp("compare")
    for name, sleeps in (("before", 2), ("after", 2 + SLOWER_MS)):
        ended = record(folder / name, job("compared.py", sleeps), steps=10)
        assert ended.code == 0, ended.stderr
    return folder


def test_the_slower_line_is_named_first_with_its_size(folder):
    answer = esprof("compare", "before", "after", "--json", cwd=folder)
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert found["schema"] == "esprof.compare/1"
    part = found["parts"][0]
    assert (part["name"], part["noise"]) == ("host_gap", False)
    assert part["change_us"] > 0.9 * SLOWER_MS * 1000
    assert part["places"][0]["name"].endswith("compared.py: augment")
    assert "augment" in found["verdict"]
    assert sum(one["change_us"] for one in found["parts"]) == pytest.approx(found["step"]["change_us"])
