"""Tar and zip archives of traces: unpacked to a temporary folder, read as a folder is, and removed."""

import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import IO, BinaryIO

from esprof.core import readable
from esprof.core.errors import InputError, unreadable
from esprof.core.types import Bytes
from esprof.run.kineto.compressed import BROKEN_STREAM, decompressed
from esprof.run.reading import memory_limit
from esprof.run.run import RunWarning

_MAX_MEMBERS = 100_000
_PIECE: Bytes = 1 << 20
_MAGIC_AT, _MAGIC = 257, b"ustar"
_MAX_NAME_CHARS = 200
_BROKEN = (*BROKEN_STREAM, tarfile.TarError, zipfile.BadZipFile, NotImplementedError, RuntimeError, zlib.error)
"""What a broken, encrypted or unknown archive raises."""

_Member = tuple[str, IO[bytes] | None]
"""Name in the archive, and content; None for what is neither a file nor a folder, such as a link."""


@dataclass(frozen=True)
class Sources:
    """The files to read, and where those of archives lie."""

    files: list[Path]
    unpacked: dict[Path, Path]
    """Temporary folder -> the archive that it holds."""
    warnings: tuple[RunWarning, ...]

    def shown(self, text: str) -> str:
        """`text` with the archive's name instead of the temporary folder's."""
        for folder, archive in self.unpacked.items():
            text = text.replace(str(folder), str(archive))
        return text


@contextmanager
def unpacked(paths: Sequence[Path], is_trace: Callable[[Path], bool]) -> Iterator[Sources]:
    """Yield `paths` with the traces of each archive in its place. The temporary folders are removed on leaving.

    At most the memory limit is unpacked from each archive. Names are taken apart, so no member leaves its folder; links
    and devices are left out. Raises InputError for an archive that is broken, too large or without traces.
    """
    with ExitStack() as stack:
        files, folders, warnings = [], {}, []
        for path in paths:
            if not is_archive(path):
                files.append(path)
                continue
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="esprof-")))
            folders[folder] = path
            members, left_out = _unpack(path, folder)
            found = [member for member in members if is_trace(member)]
            if not found:
                raise InputError("is an archive without a trace", path=path, remedy="Name an archive of traces.")
            files += found
            if left_out:
                text = f"{path.name}: {left_out} members were left out: links, or names that lead out of the archive"
                warnings.append(RunWarning("members-left-out", text))
        yield Sources(files, folders, tuple(warnings))


def is_archive(path: Path) -> bool:
    """Whether the file at `path` is a zip archive or a tar archive, compressed or not."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            if file.read(4) == b"PK\x03\x04":
                return True
            file.seek(0)
            return bytes(decompressed(file).read(512))[_MAGIC_AT:].startswith(_MAGIC)
    except BROKEN_STREAM:  # Reading it will raise the error.
        return False


def _unpack(path: Path, folder: Path) -> tuple[list[Path], int]:
    """Write the files of an archive to `folder`. Return them by name, and the number of members left out."""
    written: dict[tuple[str, ...], Path] = {}
    room, left_out = memory_limit(), 0
    try:
        with path.open("rb") as file:
            for number, (name, content) in enumerate(_members(path, file)):
                parts = tuple(part for part in name.replace("\\", "/").split("/") if part not in ("", "."))
                if content is None or ".." in parts or not parts:
                    left_out += 1
                elif number >= _MAX_MEMBERS:
                    raise _too_large(path, f"holds more than {_MAX_MEMBERS} files")
                elif not any(part.startswith((".", "__MACOSX")) for part in parts):
                    written[parts] = folder / f".{number}"
                    room -= _write(content, written[parts], room)
                    if room < 0:
                        raise _too_large(path, f"is larger than {readable.size(memory_limit())} when unpacked")
    except PermissionError as error:
        raise unreadable(path, error) from error
    except _BROKEN as error:
        raise InputError(f"is a broken archive ({error})", path=path, remedy="Copy it again, or unpack it.") from error
    return _named(written, folder), left_out


def _too_large(path: Path, reason: str) -> InputError:
    return InputError(reason, path=path, remedy="Unpack it and name the folder, or raise ESPROF_MEMORY_LIMIT (bytes).")


def _members(path: Path, file: BinaryIO) -> Iterator[_Member]:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(file) as archive:
            for info in archive.infolist():
                mode = info.external_attr >> 16
                if stat.S_ISLNK(mode):
                    yield info.filename, None
                elif not info.is_dir():
                    with archive.open(info) as content:
                        yield info.filename, content
        return
    with tarfile.open(mode="r|", fileobj=decompressed(file)) as stream:
        for member in stream:
            if not member.isdir():
                yield member.name, stream.extractfile(member) if member.isreg() else None


def _write(content: IO[bytes], path: Path, room: Bytes) -> Bytes:
    """Copy at most a piece more than `room`; return the number of bytes."""
    size = 0
    with path.open("xb") as file:
        while size <= room and (piece := content.read(_PIECE)):
            size += file.write(piece)
    return size


def _named(written: dict[tuple[str, ...], Path], folder: Path) -> list[Path]:
    """Name the files as in the archive, without the folders that all share; folders become part of the name."""
    levels = zip(*(parts[:-1] for parts in written), strict=False)
    shared = len(list(takewhile(lambda level: len(set(level)) == 1, levels)))
    named = []
    for number, (parts, path) in enumerate(sorted(written.items())):
        name = "_".join(parts[shared:])[-_MAX_NAME_CHARS:].replace("\0", "_")
        target = folder / name
        named.append(path.rename(folder / f"{number}-{name}" if target.exists() else target))
    return named
