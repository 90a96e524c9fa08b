"""Run a module of this installation as a process: `python -P …/esprof/start.py MODULE WORDS…`.

`python -m` would import from the current folder first, and that folder may hold anything. `-P` leaves it out. It would also
leave out a checkout that is not installed, so the package is found by the place of this file.
"""

import runpy
import sys
from importlib import import_module
from pathlib import Path


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import_module("esprof")  # Its modules are found in its own folder from now on.
    del sys.path[0]
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
