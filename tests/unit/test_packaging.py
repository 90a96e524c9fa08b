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


def test_every_folder_of_code_is_packaged():
    folders = PROJECT["tool"]["setuptools"]["package-dir"]
    found = {
        ".".join([package, *file.parent.relative_to(ROOT / folder).parts])
        for package, folder in folders.items()
        for file in (ROOT / folder).rglob("__init__.py")
    }
    assert found == set(PROJECT["tool"]["setuptools"]["packages"])


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
