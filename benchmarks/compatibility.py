"""Runs what has to work with every torch that esprof supports, each in an environment of its own.

    make compat VERSIONS="2.6.0 2.15.0@python3.13"

Each of VERSIONS is one of torch, with the Python to use after an @ (a command or a path). The environments are made below
`--venvs` and kept: some gigabytes each. What runs are the tests marked `compat`, by what they show; a test that is
skipped says what that torch lacks. `--lowest` installs the lower bound of each of esprof's own dependencies.

Prints a row of the table in docs/reference/compatibility.md for each; exit code 1 where anything failed.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_TESTERS = ("pytest", "pytest-rerunfailures", "pytest-timeout", "pytest-xdist", "filelock", "hypothesis")
_TORCHS_OWN = re.compile(r"(torch|sympy|mpmath|fsspec|networkx|setuptools)==")
"""Pins of constraints.txt that each torch has its own mind about."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="+", metavar="VERSION[@PYTHON]")
    parser.add_argument("--venvs", type=Path, default=ROOT / "build" / "compat", help="Where the environments are.")
    parser.add_argument("--lowest", action="store_true", help="Lower bounds of the dependencies.")
    options = parser.parse_args()
    rows, failed = [], False
    for version in options.versions:
        torch, _, python = version.partition("@")
        bin = environment(options.venvs, torch, python or sys.executable, lowest=options.lowest)
        found = outcomes(bin)
        failed |= any("failed" in results for results in found.values())
        rows.append((versions_in(bin), found))
        print(f"{torch}: {found}", file=sys.stderr)
    columns = sorted({column for _, found in rows for column in found})
    print("| " + " | ".join(["torch", "Python", "numpy", *columns]) + " |")
    print("|" + "---|" * (3 + len(columns)))
    for versions, found in rows:
        print("| " + " | ".join([*versions, *(cell(found.get(column, [])) for column in columns)]) + " |")
    return int(failed)


def environment(venvs: Path, torch: str, python: str, *, lowest: bool) -> Path:
    """The `bin` of an environment with that torch, esprof, and what its tests need."""
    found = shutil.which(python)
    if found is None:
        raise SystemExit(f"no such Python: {python}")
    ask = "import sys; print('{}.{}'.format(*sys.version_info))"
    number = subprocess.run([found, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    venv = venvs / f"torch-{torch}-py{number}{'-lowest' if lowest else ''}"
    ready = venv / ".ready"
    if not ready.exists():
        subprocess.run([found, "-m", "venv", venv], check=True)
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
            constraints.write("\n".join(_lower_bounds() if lowest else _pins()))
            constraints.flush()
            pip = [venv / "bin" / "python", "-m", "pip", "install", "-q", "-c", constraints.name]
            subprocess.run([*pip, f"torch=={torch}", "setuptools>=77"], check=True)
            subprocess.run([*pip, *_TESTERS, "--no-build-isolation", "-e", ROOT], check=True)
        ready.touch()
    return venv / "bin"


def outcomes(bin: Path) -> dict[str, list[str]]:
    """What became of the tests marked `compat`, by what they show: passed, failed or skipped."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [bin / "python", "-m", "pytest", "-m", "compat and not soak", f"--junitxml={report}", "-n", "2"]
        subprocess.run([*command, "--dist", "loadfile", "tests"], cwd=ROOT, stdout=sys.stderr, check=False)
        if not report.exists():
            raise SystemExit(f"pytest of {bin} left no report")
        cases = list(ElementTree.parse(report).iter("testcase"))
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for case in cases:
        kinds = {child.tag for child in case}
        result = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        for shown in case.iterfind("properties/property[@name='compat']"):
            # Of a test that got a second try, the last result counts.
            found[shown.attrib["value"]][f"{case.get('classname')}.{case.get('name')}"] = result
    return {shows: list(results.values()) for shows, results in found.items()}


def versions_in(bin: Path) -> tuple[str, str, str]:
    """(torch, Python, numpy) in this environment."""
    ask = "import platform, numpy, torch; print(torch.__version__, platform.python_version(), numpy.__version__)"
    answer = subprocess.run([bin / "python", "-c", ask], capture_output=True, text=True, check=True)
    torch, python, numpy = answer.stdout.split()
    return torch, python, numpy


def cell(results: list[str]) -> str:
    if "failed" in results:
        return f"{results.count('failed')} of {len(results)} fail"
    passed = results.count("passed")
    return "—" if not passed else str(passed) if passed == len(results) else f"{passed} of {len(results)}"


def _pins() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if not _TORCHS_OWN.match(line)]


def _lower_bounds() -> list[str]:
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return [re.sub(r">=([^,]+).*", r"==\1", need) for need in needs]


if __name__ == "__main__":
    sys.exit(main())
