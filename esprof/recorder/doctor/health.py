"""The JSON document of `esprof doctor`."""

from typing import Literal

import msgspec

HealthState = Literal["ok", "warn", "fail"]


class HealthCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one trial."""

    name: str
    state: HealthState
    """`warn`: esprof works, with the loss that `means` names. `fail`: a verb does not work."""
    found: str
    means: str
    """What esprof needs it for."""
    remedy: str | None = None
    """What to do; None for `ok`."""


class ClusterNeed(msgspec.Struct, frozen=True, kw_only=True):
    """What a cluster must allow, which a trial on one host cannot show."""

    what: str
    why: str


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """`esprof doctor --json`."""

    schema: str = "esprof.doctor/1"
    sound: bool
    """Whether no check failed."""
    checks: tuple[HealthCheck, ...]
    cluster: tuple[ClusterNeed, ...]
    took_s: float


CLUSTER = (
    ClusterNeed(
        what="a folder that all hosts share",
        why="`esprof record -o` writes there from every host. Without one, record on each host and use `esprof merge`.",
    ),
    ClusterNeed(
        what="UDP from every host to a free port of rank 0's host",
        why="It aligns the clocks of hosts, and starts windows by time at one step. Without it, clocks are aligned by "
        "the ends of collectives.",
    ),
    ClusterNeed(
        what="TCP between the hosts, as the job itself needs it",
        why="gloo, NCCL and the rendezvous connect the ranks. esprof opens no TCP port in a recorded job.",
    ),
    ClusterNeed(
        what="ESPROF_RUN and PYTHONPATH in the environment of every process",
        why="They load the recorder. Schedulers that drop them need `esprof record --print-env`.",
    ),
    ClusterNeed(
        what="the same user on all hosts",
        why="A Run belongs to one user (mode 0700), and processes of others do not write to it.",
    ),
)


def ok(name: str, found: str, means: str) -> HealthCheck:
    return HealthCheck(name=name, state="ok", found=found, means=means)


def warn(name: str, found: str, means: str, remedy: str) -> HealthCheck:
    return HealthCheck(name=name, state="warn", found=found, means=means, remedy=remedy)


def fail(name: str, found: str, means: str, remedy: str) -> HealthCheck:
    return HealthCheck(name=name, state="fail", found=found, means=means, remedy=remedy)
