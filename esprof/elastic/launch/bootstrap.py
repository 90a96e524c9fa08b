"""What a worker runs before the script: it imports what takes long, waits until it is told to begin, and becomes the script.

    python -m esprof.elastic.launch.bootstrap SCRIPT.py … | -m MODULE …

On stdin comes one line of JSON, the variables that the script is to have; the end of stdin before it ends the worker.
"""

import json
import os
import runpy
import sys
from pathlib import Path

from esprof.core.parent import end_with_parent

READY = "ESPROF_LAUNCH_READY"
"""The file that the worker makes when it is ready."""


def main() -> None:
    # A job whose launcher was killed saves, and leaves: nobody would start it again.
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
    """Run the script as Python would."""
    if script[0] == "-m":
        sys.argv = script[1:]
        runpy.run_module(script[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = script
        sys.path[0] = str(Path(script[0]).resolve().parent)
        runpy.run_path(script[0], run_name="__main__")


if __name__ == "__main__":
    main()
