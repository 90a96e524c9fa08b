"""Run torchrun on hosts that join and leave a job, with the settings required for that.

PyTorch's agents do not send the address of the store to a host that joins in a later round, which then waits forever.
`TORCH_DISABLE_SHARE_RDZV_TCP_STORE` makes them send it. Each host needs an address that the others can reach, and one hosts
the rendezvous: both are derived from the address of the rendezvous.
"""

import fcntl
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from esprof.core.errors import EXIT_OK, UsageError
from esprof.elastic.launch.messages import VARIABLE, Launch, read_left, taken
from esprof.recorder.launcher.child import run_child
from esprof.verbs import foreign_module_line

_SIOCGIFADDR = 0x8915
_MAX_RESTARTS = 10_000
"""Each host that leaves uses up one restart of the others; joining uses none."""


@dataclass(frozen=True, kw_only=True)
class HostsMeeting:
    """How hosts find each other."""

    host: str
    port: int
    least: int
    most: int
    """Hosts."""
    job: str
    """Id of the job, which all hosts share."""
    last_call_s: int = 1
    """How long a complete rendezvous waits for more hosts; the full time after a host has left."""
    keep_alive_s: int = 1
    keep_alive_misses: int = 3
    """Missed keep-alives after which a host is considered gone. Clock offsets between hosts must be below that time."""


def command(asked: HostsMeeting, procs_per_host: int, script: Sequence[str]) -> list[str]:
    """torchrun's command on this host. Raises UsageError if the address of the rendezvous cannot be resolved."""
    mine = own_address(asked.host)
    settings = {
        "is_host": int(is_free_here(asked.host, asked.port)),
        "read_timeout": 30,
        "last_call_timeout": asked.last_call_s,
        "keep_alive_interval": asked.keep_alive_s,
        "keep_alive_max_attempt": asked.keep_alive_misses,
    }
    return [
        *foreign_module_line("torch.distributed.run"),
        f"--nnodes={asked.least}:{asked.most}",
        f"--nproc-per-node={procs_per_host}",
        f"--max-restarts={_MAX_RESTARTS}",
        "--monitor-interval=0.1",
        "--rdzv-backend=c10d",
        f"--rdzv-id={asked.job}",
        f"--rdzv-endpoint={asked.host}:{asked.port}",
        f"--local-addr={mine}",
        "--rdzv-conf=" + ",".join(f"{name}={value}" for name, value in settings.items()),
        *script,
    ]


def run(asked: HostsMeeting, procs_per_host: int, script: Sequence[str], folder: Path) -> int:
    """Run the workers of this host. Returns torchrun's exit code, or 0 if this host was asked to leave and the job has
    saved.

    `folder` must not be shared with other hosts. Raises UsageError like `command`, or if torchrun cannot be started.
    """
    launch = Launch(folder=str(folder.absolute()))
    extra = {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "GLOO_SOCKET_IFNAME": interface_of(own_address(asked.host)),
        VARIABLE: msgspec.json.encode(launch).decode(),
    }
    with taken(folder):
        code = run_child(command(asked, procs_per_host, script), {**os.environ, **extra})
        left = read_left(folder, launch.generation)
    return EXIT_OK if left is not None and left.asked else code


def is_free_here(host: str, port: int) -> bool:
    """Whether this host has the address of `host` and the port is free: a second agent on the machine must not host
    the rendezvous, too. Raises UsageError for a name that cannot be resolved."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # As the store has it: what has ended is no hindrance.
        try:
            probe.bind((_address(host), port))
        except OSError:
            return False
        return True


def own_address(host: str) -> str:
    """The local address of this host on the route to `host`. Raises UsageError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((_address(host), 9))  # Nothing is sent.
        except OSError as error:
            raise UsageError(f"{host} cannot be reached from this host: {error.strerror}") from error
        address: str = probe.getsockname()[0]
        return address


def interface_of(address: str) -> str:
    """The network interface with this address. Raises UsageError if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    raise UsageError(f"no network interface of this host has the address {address}")


def _address(host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise UsageError(f"the host name {host} cannot be resolved", remedy="Pass an address.") from error
