"""The tools of the system that a bed is made with, and what is said where one is missing."""

import os
import shutil
import subprocess
from collections.abc import Sequence

from esprof.core.errors import EsprofError

TOOLS = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux"}
"""Each command that a bed needs, and the package that brings it."""


class BedUnavailable(EsprofError):
    """This machine cannot hold a bed: the reason names the right, tool or part of the kernel that is missing."""


def require_tools() -> None:
    """Raise BedUnavailable unless this is root on a system that has the commands."""
    if os.geteuid() != 0:
        raise BedUnavailable("a test bed needs root", remedy="Network namespaces and CPU quotas are root's to make.")
    missing = [name for name in TOOLS if shutil.which(name) is None]
    if missing:
        packages = " ".join(sorted({TOOLS[name] for name in missing}))
        raise BedUnavailable(f"no such command: {', '.join(missing)}", remedy=f"Install {packages}.")


def run_tool(command: Sequence[str], purpose: str, script: str | None = None) -> None:
    """Run `command` with `script` as its standard input.

    Raises BedUnavailable, with the `purpose` and the command's own words, where it fails.
    """
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise BedUnavailable(f"{purpose} failed: {said}")
