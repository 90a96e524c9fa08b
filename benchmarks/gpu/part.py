"""Runs one part: python -m benchmarks.gpu.part NAME DEVICE OUT LIMIT_S."""

import sys
from importlib import import_module
from pathlib import Path

from benchmarks.gpu.kit import Kit


def main() -> None:
    name, device, out, limit_s = sys.argv[1:]
    import_module(f"benchmarks.gpu.parts.{name}").measure(Kit(device, Path(out), float(limit_s)))


if __name__ == "__main__":
    main()
