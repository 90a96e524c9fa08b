"""Flight-recorder dumps that the installed torch writes for a hanging job."""

import subprocess

import pytest

from esprof import load
from esprof.analyzers import diagnose
from tests.cases.marks import flight_recorder_of_gloo
from tests.cases.record import JOBS, environment, ranks

pytestmark = pytest.mark.integration


@flight_recorder_of_gloo
@pytest.mark.parametrize("form", ["pickle", "json"])
def test_a_rank_that_does_not_enter(tmp_path, form):
    command = ranks(3, JOBS / "dumped.py", tmp_path, form)
    subprocess.run(command, env=environment(TORCH_FR_BUFFER_SIZE="100"), check=True, capture_output=True)
    (finding,) = diagnose(load(tmp_path)).findings
    assert (finding.id, finding.ranks) == ("ESP801", (1,))
    assert "rank 1 did not enter all_reduce 2, which ranks 0, 2 wait in" in finding.title
    if form == "pickle":
        assert finding.evidence["stacks"].of(0).endswith("dumped.py(21): evaluate")
        assert finding.evidence["last_entered"].of(1).endswith("dumped.py(17): <module>")
