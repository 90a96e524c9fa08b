"""`cache[samples]=`: a cache for a share of the samples of each DataLoader's data set."""

import atexit
import os
import shutil
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

from .knob import Knob
from .loaders import installer

_SHARED_MEMORY = Path("/dev/shm")
_SHARE_ATTRIBUTE = "_esprof_share"
_caches = count()


def _spelled(text: str) -> str:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ValueError(f"{text!r} is not a share above 0 and up to 1")
    return f"{share:g}"


def _set(options: dict[str, Any], value: str) -> str:
    from torch.utils.data import IterableDataset

    dataset: Any = options.get("dataset")
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        return "only a map-style dataset can be cached"
    try:
        from esprof.data import MinIOCache
    except ImportError as missing:
        return f"the job's Python cannot import esprof ({missing})"
    cached = MinIOCache(dataset, _free_bytes() // 2, _folder(), items=round(float(value) * len(dataset)))
    setattr(cached, _SHARE_ATTRIBUTE, value)
    options["dataset"] = cached
    return ""


def _free_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _folder() -> Path:
    """The folder of the next cache, which all ranks of this host share: they create their loaders in the same order. The
    first rank that ends removes it."""
    run = sha256(f"{os.environ.get('ESPROF_RUN', os.getppid())} {next(_caches)}".encode()).hexdigest()[:16]
    folder = _SHARED_MEMORY / f"esprof-samples-{os.getuid()}-{run}"
    folder.mkdir(mode=0o700, exist_ok=True)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _share_of(iterator: Any) -> str:
    return getattr(iterator._dataset, _SHARE_ATTRIBUTE, "0")


KNOB = Knob(
    name="cache[samples]",
    is_term=True,
    example="0.5",
    sets="`esprof.data.MinIOCache` around the map-style dataset of each DataLoader, in memory that a host's ranks share",
    reads="the share of its samples that the cache of each iterator's dataset may hold",
    spelled=_spelled,
    install=installer(_set, _share_of),
)
