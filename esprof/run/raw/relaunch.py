"""How `esprof record` started a job: what `esprof again` needs to start it once more."""

import re
from collections.abc import Mapping

import msgspec

from .settings import Settings

_MATTERS = re.compile(
    r"(?:OMP|KMP|GOMP|MKL|OPENBLAS|NUMBA|NCCL|RCCL|GLOO|UCX|UCC|TORCH\w*|PYTORCH|CUDA|CUBLAS\w*|CUDNN|HIP|HSA|ROCR|MALLOC)_\w+"
    r"|PYTHONHASHSEED|LD_PRELOAD"
)
"""Variables on which the speed of a step depends: threads, links, devices, compilers and allocators."""

_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)


class Relaunch(msgspec.Struct, frozen=True, kw_only=True):
    """Folder, environment and settings of a recording."""

    folder: str
    """The working folder of the job."""
    environment: dict[str, str]
    """The variables that matter for speed (`that_matters`)."""
    settings: Settings


def that_matters(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables in `environ` on which the speed of a step depends, without those that may be secret."""
    return {
        name: value for name, value in sorted(environ.items()) if _MATTERS.fullmatch(name) and not _SECRET.search(name)
    }


def changes(recorded: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str | None]:
    """What to change in `environ` so that all that matters is as `recorded`; None for a variable to remove."""
    now = that_matters(environ)
    return {name: recorded.get(name) for name in sorted({*recorded, *now}) if recorded.get(name) != now.get(name)}
