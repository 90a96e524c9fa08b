"""The built wheel: what it holds, and that it works where torch is not installed."""

import json
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

from esprof import load
from tests.cases import step_runs as stepruns
from tests.cases.run_directory import write_run

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
SOURCES = ("esprof", "replay", "analyzers", "reports", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(autouse=True)
def no_path_to_this_checkout(monkeypatch):
    """`tests/conftest.py` sets it where the environment is another checkout's, and it would come before the wheel."""
    monkeypatch.delenv("PYTHONPATH", raising=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy: an earlier build's leftovers must not get in."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, symlinks=True)
        else:
            shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-index", "--no-build-isolation", "--no-deps", "--wheel-dir", out, source]
    subprocess.run([*pip, *build], check=True, timeout=200)
    (built,) = out.glob("esprof-*.whl")
    return built


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory) -> Path:
    """The folder of the programs of an environment that holds the wheel and what it requires, and nothing else.

    The requirements are linked from the environment that runs the tests, so that no network is needed.
    """
    home = tmp_path_factory.mktemp("bare")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    install = ["install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", wheel]
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *install], check=True, timeout=200)
    (site,) = home.glob("lib/python*/site-packages")
    for distribution in required("esprof"):
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            (site / top).symlink_to(Path(str(distribution.locate_file(top))).resolve())
    return python.parent


def required(name: str) -> list[metadata.Distribution]:
    """The distributions that `name` needs without any extra, and those that they need."""
    found: dict[str, metadata.Distribution] = {}
    waiting = metadata.requires(name) or []
    while waiting:
        requirement = Requirement(waiting.pop())
        if requirement.name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found[requirement.name] = metadata.distribution(requirement.name)
        waiting += found[requirement.name].requires or []
    return list(found.values())


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A Run directory with the events of a real, if small, training loop."""
    folder = tmp_path_factory.mktemp("run")
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(6):
            model(torch.ones(32, 64)).sum().backward()
            optimizer.step()
            profiler.step()
    profiler.export_chrome_trace(str(folder / "rank0.json"))
    trace = load(folder / "rank0.json")
    write_run(folder / "run", trace.meta, {("events", 0): trace.events(0)})
    return folder / "run"


def esprof(programs: Path, *arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [programs / "esprof", *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )


def test_wheel_holds_what_is_needed_and_no_foreign_name(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"esprof"}
    assert {
        "esprof/py.typed",
        "esprof/recorder/hook/sitecustomize.py",
        "esprof/replay/whatif/error/model_errors.json",
        "esprof/reports/html/templates/report.html",
    } <= names
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    for package in ("esprof", "replay", "analyzers", "reports"):
        prefix = "" if package == "esprof" else "esprof/"
        assert {prefix + str(file.relative_to(ROOT)) for file in (ROOT / package).rglob("*.py")} <= names


def test_environment_has_no_torch(bare, tmp_path):
    code = "import importlib.util, esprof; print(importlib.util.find_spec('torch'), esprof.__file__)"
    result = subprocess.run([bare / "python", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert result.stdout.startswith("None ")
    assert str(bare.parent) in result.stdout


def test_verbs_answer_without_torch(bare, run, tmp_path):
    for verb in ("replay", "diagnose"):
        result = esprof(bare, verb, run, "--json", cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout)["schema"] == f"esprof.{verb}/2"
    page = esprof(bare, "report", run, "-o", "report.html", cwd=tmp_path)
    assert page.returncode == 0, page.stderr
    assert "<html" in (tmp_path / "report.html").read_text()
    explained = esprof(bare, "explain", "ESP101", cwd=tmp_path)
    assert "ESP101" in explained.stdout


def test_check_works_without_torch(bare, tmp_path):
    stepruns.write(tmp_path / "run", stepruns.step_table([100, 101, 99] * 10))
    stepruns.write(tmp_path / "slow", stepruns.step_table([120, 121, 119] * 10))
    saved = esprof(bare, "check", "run", "--save-baseline", "base.json", cwd=tmp_path)
    assert saved.returncode == 0, saved.stderr
    assert esprof(bare, "check", "run", "--baseline", "base.json", cwd=tmp_path).returncode == 0
    assert esprof(bare, "check", "slow", "--baseline", "base.json", cwd=tmp_path).returncode == 3


def test_record_says_what_to_install(bare, tmp_path):
    (tmp_path / "train.py").write_text("raise SystemExit('must not run')\n")
    result = esprof(bare, "record", "-o", "run", "--", bare / "python", "train.py", cwd=tmp_path)
    assert result.returncode == 1
    assert "esprof[torch]" in result.stderr
    assert "must not run" not in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "start", ["import esprof, esprof.cli", "from esprof.cli import root; root(['--help'], 'esprof')"]
)
def test_start_imports_nothing_heavy(start):
    heavy = ("torch", "numba", "numpy", "pandas", "pyarrow", "plotly", "scipy", "networkx", "msgspec", "rich", "jinja2")
    script = f"atexit.register(lambda: print(*(set(sys.modules) & set({heavy})), file=sys.stderr))"
    code = f"import atexit, sys\n{script}\n{start}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stderr.strip() == ""
