"""What a worker imports before its script, and what its script imports."""

import os
import subprocess

import pytest

from esprof.verbs import module_line

SCRIPT = "import sys, helper; print(helper.NAME, sys.argv[1:], 'numpy' in sys.modules)"


@pytest.mark.slow
@pytest.mark.parametrize("words", [["job/train.py", "a"], ["-m", "train", "a"]])
def test_a_worker_imports_from_the_folder_of_its_script_only(tmp_path, words):
    home = tmp_path if words[0] == "-m" else tmp_path / "job"
    home.mkdir(exist_ok=True)
    (home / "train.py").write_text(SCRIPT)
    (home / "helper.py").write_text("NAME = 'of the job'")
    (tmp_path / "numpy.py").write_text("raise SystemExit('planted')")
    done = subprocess.run(
        module_line("esprof.elastic.launch.bootstrap", *words),
        cwd=tmp_path,
        env=os.environ | {"ESPROF_LAUNCH_READY": str(tmp_path / "ready")},
        input="{}\n",
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "of the job ['a'] True\n"), done.stderr
