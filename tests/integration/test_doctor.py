"""`esprof doctor` on this machine."""

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.promise]

CODE = """
import sys
sys.argv = ["esprof", "doctor", "--json"]
from esprof.cli import main
try:
    main()
finally:
    print("torch" in sys.modules, file=sys.stderr)
"""


def test_the_installation_of_the_tests_is_sound(tmp_path):
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120)
    answer = json.loads(done.stdout)
    checks = {check["name"]: check for check in answer["checks"]}
    assert answer["schema"] == "esprof.doctor/1"
    assert [check for check in answer["checks"] if check["state"] == "fail"] == []
    assert done.returncode == 0
    assert {"torch", "profiler", "gloo", "folder", "recorder", "terminal"} <= checks.keys()
    assert answer["cluster"]
    assert done.stderr.splitlines()[-1] == "False"
