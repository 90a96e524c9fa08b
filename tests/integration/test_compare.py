"""`esprof compare` of two recorded jobs, of which one has a slower line, and of real traces whose difference is known."""

import json
from pathlib import Path

import pytest

from esprof import load
from esprof.analyzers import compare
from tests.cases.command_line import esprof
from tests.cases.record import job, record_alone

pytestmark = pytest.mark.integration

SLOWER_MS = 30
TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces" / "torchrec-4xv100"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run (`before`), and one whose line sleeps `SLOWER_MS` longer (`after`)."""
    folder = tmp_path_factory.mktemp("compare")
    for name, sleeps in (("before", 2), ("after", 2 + SLOWER_MS)):
        record_alone(folder / name, job("compared.py", sleeps), steps=10)
    return folder


@pytest.mark.promise
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


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"{TRACES} is absent: these are no part of the project")
class TestRealTraces:
    """Of runs on four GPUs that recorded three steps each."""

    def test_a_rank_that_no_longer_sleeps_is_named(self):
        """Rank 2 sleeps for a second in each step; then for 20 ms."""
        found = compare(load(TRACES / "long_a2a_1"), load(TRACES / "long_a2a_5"))
        assert (found.parts[0].name, found.parts[0].noise) == ("host_gap", False)
        assert found.parts[0].places[0].change_us == pytest.approx(-980_000, rel=0.01)
        assert [one.rank for one in found.ranks if one.alone] == [2]

    def test_quantised_communication_is_less_exposed(self):
        found = compare(load(TRACES / "long_a2a_5"), load(TRACES / "long_a2a_5_qcomm"))
        assert [part.name for part in found.parts if not part.noise] == ["communication"]
        assert found.step.noise
