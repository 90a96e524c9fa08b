"""The first program of a worker: imports slow modules, waits for the start, then runs the script in this process.

    python -P …/esprof/start.py esprof.elastic.launch.bootstrap SCRIPT.py … | -m MODULE …

Reads one line of JSON from stdin, the environment variables of the script. The worker ends if stdin is closed before.
"""

import json
import os
import runpy
import sys
from pathlib import Path

from esprof.core.processes import end_with_parent

READY = "ESPROF_LAUNCH_READY"
"""Variable with the path of the file that the worker creates when it is ready."""


def main() -> None:
    # A job whose launcher was killed saves and leaves, because nothing would restart it.
    end_with_parent()
    import torch.distributed

    import esprof.elastic.trainer  # noqa: F401

    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0).step()  # The first optimizer imports a lot by itself.
    Path(os.environ[READY]).touch(mode=0o600)
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    os.environ.update(json.loads(line))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    _become(sys.argv[1:])


def _become(script: list[str]) -> None:
    """Run the script as Python would, which imports from its folder first."""
    is_module = script[0] == "-m"
    if not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, os.getcwd() if is_module else str(Path(script[0]).resolve().parent))
    if is_module:
        sys.argv = script[1:]
        runpy.run_module(script[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = script
        runpy.run_path(script[0], run_name="__main__")


if __name__ == "__main__":
    main()
