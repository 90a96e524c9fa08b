"""A folder that runs one rank of a job among its replayed peers: the schedule, the code that reads it, and a README.

It needs PyTorch and not esprof: the modules of `esprof.recorder.ghost` are copied into it.
"""

from importlib.resources import files
from pathlib import Path

import msgspec

from esprof.analyzers.ghost.schedule import GhostSchedule
from esprof.core import readable
from esprof.core.errors import OutputError
from esprof.core.output import atomic_folder, claim, write_bytes

SCHEDULE, RUN = "schedule.json", "run.py"
_PACKAGE = "esprof_ghost"
_MODULES = ("__init__.py", "main.py", "group.py", "completer.py", "peers.py")

_RUN = f'''"""Run a script as rank {{rank}} of {{world_size}}; its peers are replayed. See README.md."""

import sys
from pathlib import Path

from {_PACKAGE}.main import main

if __name__ == "__main__":
    main(Path(__file__).with_name("{SCHEDULE}"), sys.argv[1:])
'''

_README = """# Rank {rank} of {world_size}, with replayed peers

Written by `esprof export --format ghost` (esprof {esprof}). It needs PyTorch, and not esprof.

    python {run} train.py ARGUMENTS
    python {run} -m package.train ARGUMENTS

Start the script with the arguments of the recorded job. It runs unchanged, as rank {rank}. The other {peers} ranks run no
code. Each launches a collective as long after those that it waited for as it did in {steps} of the recording. So
they wait for a slow rank {rank}, and it waits for them.

- The peers join in after one step of the script with the collectives of a recorded step.
- All other collectives end at once. They are listed at the end, except those before.
- Collectives give this rank its own values, so a loss means nothing. Times do.
- `{schedule}` holds times, sizes and kinds of collectives. No name of the job is in it.
"""


def claim_ghost(folder: Path, *, force: bool) -> None:
    """Raise OutputError if no reproducer may be written to `folder`: with `force`, one may be replaced, nothing else."""
    claim(folder, force=force)
    if folder.exists() and not (folder / SCHEDULE).is_file():
        raise OutputError("is not a reproducer and is not overwritten", path=folder, remedy="Choose another name.")


def write_ghost(schedule: GhostSchedule, folder: Path, *, force: bool) -> None:
    """Write the reproducer, completely or not at all. Raises OutputError."""
    claim_ghost(folder, force=force)
    words = {
        "rank": schedule.rank,
        "world_size": schedule.world_size,
        "esprof": schedule.esprof,
        "peers": schedule.world_size - 1,
        "steps": readable.numbered("step", [step.step for step in schedule.steps]),
        "run": RUN,
        "schedule": SCHEDULE,
    }
    with atomic_folder(folder) as made:
        package = made / _PACKAGE
        package.mkdir()
        for name in _MODULES:
            write_bytes(package / name, files("esprof.recorder.ghost").joinpath(name).read_bytes())
        write_bytes(made / SCHEDULE, msgspec.json.encode(schedule))
        write_bytes(made / RUN, _RUN.format(**words).encode())
        write_bytes(made / "README.md", _README.format(**words).encode())
