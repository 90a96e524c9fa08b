"""The example action of GitHub Actions, step by step as a runner runs it, and the pytest plugin."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.integration.test_check import write_run

pytestmark = pytest.mark.integration

CHECKOUT = Path(__file__).resolve().parents[2]
ACTION = CHECKOUT / "examples" / "ci" / "action.yml"
WORKFLOW = CHECKOUT / "examples" / "ci" / "workflow.yml"


def run_step(step: dict, inputs: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the script of a composite action's step. Inputs reach it by `env` alone."""
    assert "${{" not in step["run"], "an expression in a script would be a place to inject commands"
    values = {
        name: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda match: inputs[match[1]], value)
        for name, value in step["env"].items()
    }
    files = {name: str(folder / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    environment = os.environ | values | files | {"PATH": path}
    return subprocess.run(shell, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture
def action() -> tuple[dict[str, dict], dict[str, str]]:
    """(steps by name, inputs with their defaults)."""
    content = yaml.safe_load(ACTION.read_text())
    steps = {step["name"]: step for step in content["runs"]["steps"]}
    return steps, {name: one.get("default", "") for name, one in content["inputs"].items()}


def test_the_action_checks_a_run_against_its_baseline(action, tmp_path):
    steps, inputs = action

    def check(*, seed: int, scale: float = 1.0, **more: str) -> tuple[int, str, str]:
        (tmp_path / "GITHUB_OUTPUT").write_text("")
        (tmp_path / "GITHUB_STEP_SUMMARY").write_text("")
        write_run(tmp_path / "esprof-run", seed=seed, scale=scale)
        done = run_step(steps["Check"], inputs | more, tmp_path)
        return done.returncode, (tmp_path / "GITHUB_OUTPUT").read_text().strip(), done.stdout

    assert check(seed=1)[:2] == (0, "outcome=new")
    assert check(seed=2, append="true")[:2] == (0, "outcome=unchanged")
    assert (tmp_path / "esprof-baseline.json").read_text().count('"step_time"') == 2
    code, outcome, said = check(seed=3, scale=1.2, append="true")
    assert (code, outcome) == (3, "outcome=regressed")
    assert "::error title=esprof check::step_time median changed by +" in said
    assert "%25" in said
    assert "### esprof check: regressed" in (tmp_path / "GITHUB_STEP_SUMMARY").read_text()
    assert (tmp_path / "esprof-baseline.json").read_text().count('"step_time"') == 2


def test_the_action_records_the_command(action, tmp_path):
    steps, inputs = action
    (tmp_path / "job.py").write_text("print('no training here')\n")
    done = run_step(steps["Record"], inputs | {"command": "python job.py 'a b' && exit 7"}, tmp_path)
    assert done.returncode == 7, done.stderr


def test_the_workflow_uses_inputs_that_the_action_has(action):
    content = yaml.safe_load(WORKFLOW.read_text())
    (step,) = (one for one in content["jobs"]["step-time"]["steps"] if one.get("uses") == "./.github/actions/esprof")
    assert set(step["with"]) <= set(action[1])
    assert "command" in step["with"]


def pytest_with_plugin(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "esprof.reports.pytest_plugin", "-rs", "-q", *options]
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def test_the_plugin_fails_a_test_whose_job_became_slower(tmp_path):
    (tmp_path / "test_speed.py").write_text("def test_speed(esprof_check):\n    esprof_check('run')\n")
    write_run(tmp_path / "run", seed=1)
    assert "nothing to compare with" in pytest_with_plugin(tmp_path).stdout
    first = pytest_with_plugin(tmp_path, "--esprof-baseline", "baselines")
    assert "saved the first baseline" in first.stdout
    write_run(tmp_path / "run", seed=2)
    assert pytest_with_plugin(tmp_path, "--esprof-baseline", "baselines", "--esprof-append").returncode == 0
    write_run(tmp_path / "run", seed=3, scale=1.2)
    slower = pytest_with_plugin(tmp_path, "--esprof-baseline", "baselines")
    assert slower.returncode == 1
    assert "check: regressed" in slower.stdout
    (file,) = (tmp_path / "baselines").iterdir()
    assert (file.name, file.read_text().count('"step_time"')) == ("test_speed.py--test_speed.json", 2)


def test_the_plugin_records_a_command(tmp_path):
    (tmp_path / "test_speed.py").write_text(
        "import sys\n\ndef test_speed(esprof_check):\n    esprof_check([sys.executable, '-c', 'raise SystemExit(4)'])\n"
    )
    done = pytest_with_plugin(tmp_path, "--esprof-baseline", "baselines")
    assert "the command ended with 4" in done.stdout
