"""Chakra execution traces, made by hand after `et_def.proto`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.cases.protobuf import delimited, message, varint

COMPUTE, COLLECTIVE = 4, 7
US = 1_712_000_000_000_000


def attribute(name: str, value: Any) -> bytes:
    number = 27 if isinstance(value, bool) else 9 if isinstance(value, int) else 29
    return message((1, name), (number, int(value) if isinstance(value, bool) else value))


def node(
    number: int,
    name: str,
    start_us: int | None = None,
    dur_us: int = 0,
    *,
    kind: int = COMPUTE,
    after: Sequence[int] = (),
    inputs: tuple[str, str] | None = None,
    **attributes: Any,
) -> bytes:
    """A node; `start_us` is after US, `inputs` are (shapes, types) as Python prints them."""
    fields = [(1, number), (2, name), (3, kind), (4, b"".join(map(varint, after)))]
    if start_us is not None:
        fields.append((6, US + start_us))
    if inputs:
        fields.append((8, message((1, "[]"), (2, inputs[0]), (3, inputs[1]))))
    fields += [(10, attribute(key, value)) for key, value in attributes.items()]
    return message(*fields, (7, dur_us))


def trace(*nodes: bytes, pid: int = 1) -> bytes:
    return delimited([message((1, "0.0.4"), (2, attribute("pid", pid))), *nodes])


def job(rank: int, steps: int = 4) -> bytes:
    """One rank of a data-parallel job whose rank 1 is late: steps of a millisecond, on the host and on a device."""
    nodes = []
    for step in range(steps):
        begin, first = 1000 * step, 10 * step + 1
        arrive = 400 + 50 * rank
        host = {"is_cpu_op": True, "tid": 7}
        shaped = {"inputs": ("[[4, 8], [8, 2]]", "['Tensor(float)', 'Tensor(float)']")}
        nodes += [
            node(first, "aten::mm", begin + 10, 100, **host, **shaped),
            node(first + 1, "gemm", begin + 60, 300, after=[first], is_cpu_op=False, stream=7),
            node(first + 2, "record_param_comms", begin + 200, 50, **host),
            node(
                first + 3,
                "ncclDevKernel_AllReduce",
                begin + arrive,
                600 - arrive,
                kind=COLLECTIVE,
                after=[first + 2],
                is_cpu_op=False,
                stream=20,
                comm_type=0,
                comm_size=4096,
            ),
            node(first + 4, "Optimizer.step#SGD.step", begin + 900, 90, **host),
        ]
    return trace(*nodes, pid=100 + rank)


def write_job(folder: Path, ranks: int = 2) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        (folder / f"job.{rank}.et").write_bytes(job(rank))
    return folder
