"""The server of a host's cached samples, `python -m esprof.data.hosts.server`: a child of the host's first rank.

Its input says what to serve; it prints its port, and ends when its input does, that is, when the rank ends in whatever way.
"""

import resource
import shutil
import socket
import sys
import threading
import time
from contextlib import suppress

import msgspec

from esprof.data.hosts.messages import PeerLine
from esprof.data.hosts.server_process import Served
from esprof.data.shared_database import About
from esprof.data.shared_store import SharedStore

_MAX_STALL_S = 60.0
"""How long another host may take to receive a sample."""
_PAUSE_S = 0.1


def main() -> None:
    served = msgspec.json.decode(sys.stdin.buffer.readline(), type=Served)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # Each loader worker of each host has a connection.
    store = SharedStore(served.size, About(items=served.items), served.folder)
    family = socket.AF_INET6 if ":" in served.address else socket.AF_INET
    with socket.create_server((served.address, 0), family=family, backlog=1024) as listening:
        threading.Thread(target=_accept, args=(listening, store, served.token), daemon=True).start()
        print(listening.getsockname()[1], flush=True)
        sys.stdin.buffer.read()
    if served.is_temporary:
        shutil.rmtree(served.folder, ignore_errors=True)


def _accept(listening: socket.socket, store: SharedStore, token: bytes) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:  # Too many are connected.
            time.sleep(_PAUSE_S)
            continue
        threading.Thread(target=_serve, args=(connection, store, token), daemon=True).start()


def _serve(connection: socket.socket, store: SharedStore, token: bytes) -> None:
    with connection, suppress(OSError):  # The other side is gone, or does not belong to the job.
        line = PeerLine(connection, _MAX_STALL_S)
        line.introduce(token, is_server=True)
        while True:
            for item in line.asked():
                line.answer(store.get(item, bytes))


if __name__ == "__main__":
    main()
