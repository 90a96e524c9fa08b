"""What the figures were measured on, and with which versions.

python -m benchmarks.gpu.hardware cuda      # JSON; a process of its own, since it opens the device
"""

import json
import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

import esprof
from esprof.recorder.shared.identity import cpu_model

GB = 1e9
LIBRARIES = ("msgspec", "numba", "numpy", "pyarrow", "scipy")


def hardware(device: str) -> dict[str, Any]:
    """Raises SystemExit, with torch's reason, where there is no such device."""
    found = {"device": device, "cpu": cpu_model(), "cores": len(os.sched_getaffinity(0))}
    if device == "cuda":
        try:
            of_gpu = torch.cuda.get_device_properties(0)
        except (RuntimeError, AssertionError) as error:
            raise SystemExit(str(error)) from None
        found |= {"device": of_gpu.name, "memory_gb": round(of_gpu.total_memory / GB, 1)}
        found |= {"multiprocessors": of_gpu.multi_processor_count, "driver": _driver()}
    return found


def versions() -> dict[str, str | None]:
    own = {"esprof": esprof.__version__, "python": platform.python_version()}
    of_torch = {"torch": torch.__version__, "cuda": torch.version.cuda}
    return own | of_torch | {name: _version(name) for name in LIBRARIES}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:  # Put beside the sources without its metadata.
        return None


def _driver() -> str | None:
    if shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip() or None


if __name__ == "__main__":
    print(json.dumps({"hardware": hardware(sys.argv[1]), "versions": versions()}))
