"""Run esprof on NFS, in a Linux kernel of its own.

    python -m benchmarks.nfs

Needs Debian's user-mode-linux, nfs-kernel-server and kmod, and root. User-mode Linux is a kernel that runs as a process; its
root folder is this host's. It exports a folder in memory by NFS 4.2, and mounts it twice, each with a cache of its own, as
two hosts do. What runs there is `benchmarks.nfs.inside`: a job of two ranks is recorded on one mount and diagnosed on the
other; two processes append to one history, each on its mount; two want to write checkpoints to one folder at once; a soak of
an elastic job (`benchmarks.soak`) with kill, drain, stop and plans trains under recorder, tuning loop and page. Files are on
NFS only: the kernel has one CPU, and no network.

Prints a JSON line a figure. Ends with code 1 if something is lost or fails.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_LINUX = "linux.uml"
_MEMORY = "6G"
_LONGEST_S = 1_800


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    path = f"{os.environ['PATH']}:/usr/sbin"
    missing = [name for name in (_LINUX, "rpc.nfsd", "depmod") if not shutil.which(name, path=path)]
    if missing or os.geteuid():
        print(f"needs {', '.join(missing) or 'root'}: see --help", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:  # The kernel's /tmp is its own.
        return _boot(Path(scratch))


def _boot(scratch: Path) -> int:
    """Let the kernel run, print what it wrote, and return the exit code of what it ran."""
    words = f"rootfstype=hostfs rootflags=/ rw mem={_MEMORY} quiet con=null con0=null,fd:1 random.trust_cpu=on"
    # The kernel passes on what it does not know as variables of its first process.
    variables = f"init={Path(__file__).with_name('init.sh')} OUTPUT={scratch} PYTHON={sys.executable}"
    with (scratch / "kernel").open("wb") as log:
        command = [_LINUX, *words.split(), *variables.split()]
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=_LONGEST_S, check=False)
    try:
        for name in ("stdout", "stderr"):
            print((scratch / name).read_text(), end="", file=getattr(sys, name))
        return int((scratch / "done").read_text())
    except FileNotFoundError:
        print((scratch / "kernel").read_text(errors="replace"), file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
