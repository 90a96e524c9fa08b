"""Hosts on a switch: network namespaces, a bridge, and links that hold a rate.

The bridge and its ports live in a namespace of their own, the switch. So nothing shows among the machine's interfaces,
its firewall does not see the traffic, all beds use the same addresses and interface names, and what is in a namespace
goes with it.
"""

import re
from pathlib import Path

from benchmarks.testbed.system import BedUnavailable, run_tool
from esprof.core.errors import UsageError

INTERFACE = "eth0"
"""A host's only interface beside loopback."""
NAMESPACES = Path("/run/netns")

_MTU = 9000
"""Jumbo frames, as clusters use: at 1500, 1 Gbit/s would cost half a core at either end."""
_FRAME = 10_000
"""Least size of a link's token bucket, bytes: a full frame with its header, and room for tc's rounding. A smaller bucket
would drop the frame."""
_BURST_S = 150e-6
"""How long a link may lag behind its rate and still catch up. More would let 1 MB messages through above the rate."""
QUEUE = 64 << 20
"""Size of a link's queue, bytes, if no other is asked for: more than the TCP windows of 8 hosts at Linux's usual limits,
since a lost packet would cost TCP's timeout of 200 ms."""
LEAST_QUEUE = _FRAME
"""Least size of a queue, bytes: with less, no frame would pass."""
_UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}


def bits_per_s(rate: str) -> int:
    """`rate` such as "200mbit", as `tc` writes it, in bits per second. Raises UsageError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", rate)
    if not match or not float(match[1]):
        raise UsageError(f"no link rate: {rate!r}", remedy="Write it like 200mbit or 1gbit.")
    return round(float(match[1]) * _UNITS[match[2]])


def address(index: int) -> str:
    """The IPv4 address of host `index` on its switch."""
    return f"10.0.0.{index + 1}"


def names() -> list[str]:
    """All named network namespaces of the machine."""
    return [entry.name for entry in NAMESPACES.iterdir()] if NAMESPACES.is_dir() else []


def make_switch(switch: str) -> None:
    _add_namespace(switch)
    _ip(switch, "making a bridge", "link add bridge type bridge", f"link set bridge mtu {_MTU} up")


def attach(switch: str, host: str, index: int) -> None:
    """Make namespace `host` and connect it to port `index` of the switch."""
    port = f"port{index}"
    _add_namespace(host)
    _ip(
        switch,
        "making a veth pair",
        f"link add {port} mtu {_MTU} type veth peer name {INTERFACE} netns {host}",
        f"link set {port} master bridge {_settings()} up",
    )
    _ip(
        host,
        "setting up a host's interface",
        f"link set {INTERFACE} mtu {_MTU} {_settings()}",
        f"address add {address(index)}/24 dev {INTERFACE}",
        f"link set {INTERFACE} up",
        "link set lo up",
    )
    # Where nothing is lost, no congestion control has work to do; reno is the one that each namespace may have, and a
    # default such as bbr would pace by its own estimate of the rate.
    choose = "echo reno > /proc/sys/net/ipv4/tcp_congestion_control"
    run_tool(["nsenter", f"--net={NAMESPACES / host}", "sh", "-c", choose], "choosing TCP's congestion control")


def detach(switch: str, host: str, index: int) -> None:
    """Remove the link of `host`, and the namespace."""
    _ip(switch, "removing a veth pair", f"link delete port{index}")
    remove(host)


def set_rate(switch: str, host: str, index: int, rate: str | None, queue: int = QUEUE) -> None:
    """Give the link of `host` a rate in each direction; None is as fast as the machine.

    `queue` bytes wait for a link with a rate; packets beyond are lost.
    """
    discipline = "pfifo"
    if rate is not None:
        bits = bits_per_s(rate)
        burst = max(_FRAME, round(bits / 8 * _BURST_S))
        discipline = f"tbf rate {bits}bit burst {burst} limit {queue}"
    for namespace, interface in ((host, INTERFACE), (switch, f"port{index}")):
        command = f"tc -n {namespace} qdisc replace dev {interface} root {discipline}"
        run_tool(command.split(), "shaping a link by tc tbf")


def remove(name: str) -> None:
    """Remove a namespace and what is in it. Another bed's clean-up may be doing the same."""
    try:
        run_tool(["ip", "netns", "delete", name], "removing a network namespace")
    except BedUnavailable:
        if (NAMESPACES / name).exists():
            raise


def _settings() -> str:
    """Settings of a link for `ip`: one segment a packet, so that a sender cannot pass 64 kB at once, and no link-local IPv6,
    which gloo might pick."""
    return "gso_max_segs 1 addrgenmode none"


def _add_namespace(name: str) -> None:
    run_tool(["ip", "netns", "add", name], "making a network namespace")


def _ip(namespace: str, purpose: str, *commands: str) -> None:
    run_tool(["ip", "-n", namespace, "-batch", "-"], purpose, "\n".join(commands))
