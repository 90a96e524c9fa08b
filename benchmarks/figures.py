"""A figure of a benchmark as it is printed."""

import json
from collections.abc import Mapping


def show(name: str, value: float, unit: str, context: Mapping[str, object]) -> None:
    """Print a figure as a JSON line."""
    line = {"name": name, "value": round(value, 4), "unit": unit, "context": context}
    print(json.dumps(line, default=float), flush=True)
