"""Synthetic probes: an α–β link between two ranks, and backward passes slowed by concurrent communication."""

import msgspec

from esprof.run.probes import Condition, Point, Probes, Sweep

RANKS = (0, 1)


def points(sizes, time_ns, cpu_ns=None):
    """Points of three equal repeats: `time_ns(size)`, `cpu_ns(size)`."""
    return tuple(
        Point(size=size, samples_ns=(round(time_ns(size)),) * 3, cpu_ns=round(cpu_ns(size)) if cpu_ns else None)
        for size in sizes
    )


def link(
    alpha_ns, beta_ns, *, cpu_ns_per_byte=0.0, sizes=tuple(1 << power for power in range(10, 25)), name="all_reduce"
):
    """A collective that takes `alpha + size * beta`."""
    found = points(sizes, lambda size: alpha_ns + size * beta_ns, lambda size: size * cpu_ns_per_byte)
    return Sweep(kind="collective", name=name, unit="bytes", ranks=RANKS, device="cpu", backend="gloo", points=found)


def slowing(beta_ns, lost_ns_per_byte, *, pass_ns=8_000_000, sizes=(1 << 16, 1 << 20)):
    """Backward passes of `pass_ns` on both ranks, alone and slowed by concurrent all-reduces: these take `beta_ns` per byte,
    of which the pass loses `lost_ns_per_byte`."""
    slowed_ns = pass_ns / (1 - lost_ns_per_byte / beta_ns)
    common = {"kind": "backward", "name": "matmul", "unit": "bytes", "device": "cpu"}
    passes = [
        Sweep(**common, ranks=(rank,), beside=beside, points=points(sizes, lambda _, took=took: took))
        for rank in RANKS
        for beside, took in (("", pass_ns), ("all_reduce", slowed_ns))
    ]
    all_reduces = Sweep(
        kind="collective",
        name="all_reduce",
        unit="bytes",
        ranks=RANKS,
        device="cpu",
        backend="gloo",
        beside="backward",
        points=points(sizes, lambda size: size * beta_ns),
    )
    return [*passes, all_reduces]


def probes(*sweeps):
    return Probes(created_ns=0, world_size=2, budget_s=60, whole=True, sweeps=sweeps)


def controlled(control, *took_ms, size=4 << 20, kind="all_reduce", ranks=RANKS):
    """Collectives with a TCP congestion control: repeats of a size, and of a quarter of it in a quarter of the time."""
    found = tuple(
        Point(size=size // part, samples_ns=tuple(round(1e6 * took / part) for took in took_ms)) for part in (4, 1)
    )
    name = f"{kind}:{control}"
    return Sweep(kind="congestion", name=name, unit="bytes", ranks=ranks, device="cpu", backend="gloo", points=found)


def on_hosts_with(*controls, sweeps=(), **more):
    """Probes of ranks whose hosts have these TCP congestion controls."""
    conditions = tuple(Condition(rank=rank, congestion=control) for rank, control in enumerate(controls))
    return msgspec.structs.replace(probes(*sweeps), conditions=conditions, **more)
