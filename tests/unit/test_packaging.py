"""What pyproject.toml and constraints.txt promise, held against the tree and the installed environment."""

import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    parsed = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in parsed}


def test_each_import_name_leads_to_its_folder_here():
    for name in ("replay", "analyzers", "reports"):
        link = ROOT / "esprof" / name
        assert link.is_symlink()
        assert link.resolve() == ROOT / name


def test_every_folder_of_code_is_a_package():
    code = [file for name in ("esprof", "replay", "analyzers", "reports") for file in (ROOT / name).rglob("*.py")]
    bare = {file.parent for file in code if not (file.parent / "__init__.py").exists()}
    assert bare == {ROOT / "esprof" / "recorder" / "hook"}, "setuptools leaves folders without __init__.py out"


def test_every_requirement_is_pinned_those_of_requirements_too():
    pinned, seen = pins(), set()
    waiting = [Requirement("esprof[torch,dev]")]
    while waiting:
        requirement = waiting.pop()
        for text in metadata.requires(requirement.name) or []:
            needed = Requirement(text)
            wanted = not needed.marker or any(
                needed.marker.evaluate({"extra": extra}) for extra in ("", *requirement.extras)
            )
            # A torch built for CUDA pins NVIDIA's libraries and Triton itself.
            if wanted and str(needed) not in seen and not needed.name.startswith(("nvidia", "triton", "cuda")):
                seen.add(str(needed))
                assert canonicalize_name(needed.name) in pinned, f"{needed.name}, needed by {requirement.name}"
                waiting.append(needed)
    assert len(seen) > 20


def test_what_is_installed_is_what_is_pinned():
    installed = {canonicalize_name(dist.name): dist.version.partition("+")[0] for dist in metadata.distributions()}
    wrong = {name: installed[name] for name, version in pins().items() if installed.get(name, version) != version}
    assert not wrong
