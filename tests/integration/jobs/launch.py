"""Starts so many ranks of a script as torchrun does, without the seconds that torchrun takes: launch.py COUNT SCRIPT…

It needs no torch. The first rank that fails ends the others, and its exit code is that of the whole.
"""

import os
import socket
import subprocess
import sys
import time


def main() -> int:
    count, *command = sys.argv[1:]
    ranks = [
        subprocess.Popen([sys.executable, "-u", *command], env=os.environ | of_rank)
        for of_rank in variables(int(count))
    ]
    while None in (codes := [rank.poll() for rank in ranks]) and not any(codes):
        time.sleep(0.05)
    for rank in ranks:
        if any(codes):
            rank.terminate()
        rank.wait()
    return next((code % 256 for code in codes if code), 0)


def variables(count: int) -> list[dict[str, str]]:
    """The environment variables of each rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]


if __name__ == "__main__":
    sys.exit(main())
