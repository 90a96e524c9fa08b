"""All that an answer depends on besides the files it is about: the question, the environment, and the code."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path

import msgspec

from esprof.reports.answers.content import content_hash, stamps_of
from esprof.reports.answers.store import Kept, user_store
from esprof.version import __version__

_PACKAGE = Path(__file__).parents[2]
"""esprof, with links to the folders beside it."""


def remembered(question: str, sources: Sequence[str], compute: Callable[[], Kept]) -> Kept:
    """The stored answer to `question` about the files `sources`; computed and stored if there is none.

    `question` says all that the answer depends on, but for files, environment and code. Errors are not stored, nor is an
    answer that is not final or about files that changed meanwhile.
    """
    store = user_store()
    stamps = stamps_of(sources) if store else None
    content = content_hash(stamps) if stamps is not None else None
    if store is None or content is None:
        return compute()
    key = sha256(repr((question, content, _environment(), code_stamp())).encode()).hexdigest()
    kept = store.get(key)
    if kept is None:
        kept = compute()
        if kept.is_final and stamps_of(sources) == stamps:
            store.put(key, kept)
    return kept


def _environment() -> list[tuple[str, str]]:
    return sorted((name, value) for name, value in os.environ.items() if name.startswith("ESPROF_"))


def code_stamp() -> str:
    """Changes with every file of esprof, with the version of Python, and with each installation of a library."""
    libraries = Path(msgspec.__file__).parents[1]  # Installing a library creates a folder in it.
    return repr((__version__, sys.version, libraries.stat().st_mtime_ns, list(_source_files())))


def _source_files() -> Iterator[tuple[str, int, int]]:
    """Path, size and time of each file."""
    folders = [str(_PACKAGE)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.is_dir():
                    if entry.name != "__pycache__":
                        folders.append(entry.path)
                else:
                    info = entry.stat()
                    yield entry.path, info.st_size, info.st_mtime_ns
