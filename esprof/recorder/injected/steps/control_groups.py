"""Control groups that contain this process, as far as they are visible in it."""

import os
from collections.abc import Iterator
from contextlib import suppress

_ROOT = "/sys/fs/cgroup"


def files(controller: str, unified: str, own: str) -> Iterator[str]:
    """Paths of a file of each group from that of this process outwards, which need not exist.

    The file is called `unified` in cgroup v2, which has one hierarchy, and `own` in that of the `controller` in v1.
    """
    with suppress(FileNotFoundError), open("/proc/self/cgroup") as groups:
        for line in groups:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if not controllers:
                yield from upwards(_ROOT, path, unified)
            elif controller in controllers.split(","):
                yield from upwards(os.path.join(_ROOT, controller), path, own)


def upwards(root: str, path: str, name: str) -> Iterator[str]:
    """Paths of the file `name` of the group `path` and its parents. A container may see only the outermost."""
    folder = f"{root}{path}".rstrip("/")
    while folder.startswith(root):
        yield os.path.join(folder, name)
        folder = os.path.dirname(folder)
