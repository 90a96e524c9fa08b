"""PyTorch's execution traces, made by hand as its observer writes them (schema 1.1.1)."""

from typing import Any


def node(rf_id: int, name: str, inputs: list[tuple[str, Any]] = [], **attributes: Any) -> dict[str, Any]:  # noqa: B006
    """One node. `inputs` are (type, shape) of each input, as (`Tensor(float)`, [2, 3])."""
    types, shapes = [kind for kind, _ in inputs], [shape for _, shape in inputs]
    known = {"rf_id": rf_id, "seq_id": -1, "scope": 0, "tid": 1, "op_schema": ""} | attributes
    return {
        "id": rf_id + 100,
        "name": name,
        "ctrl_deps": 1,
        "inputs": {"values": [None] * len(types), "shapes": shapes, "types": types, "strides": shapes},
        "outputs": {"values": [], "shapes": [], "types": [], "strides": []},
        "attrs": [{"name": key, "type": "", "value": value} for key, value in known.items()],
    }


def execution_trace(*nodes: dict[str, Any], pid: int = 1) -> dict[str, Any]:
    return {
        "schema": "1.1.1-chakra.0.0.4",
        "pid": pid,
        "time": "2026-01-01 00:00:00",
        "start_ts": 1,
        "nodes": list(nodes),
        "finish_ts": 2,
    }
