"""A checkpoint on disk: a folder per step in the layout of `torch.distributed.checkpoint`, created atomically.

A folder is written under a temporary name, synced, given a manifest with the sha256 of every file, and renamed. Any
number of processes with any assignment can resume from it. Files that differ from their hash are not loaded, and
loading cannot run code.
"""

import errno
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from esprof.core.disk import open_regular, read_regular
from esprof.core.errors import InputError, MismatchError, OutputError, unreadable
from esprof.core.output import write_bytes
from esprof.core.types import NOT_DECODED, Bytes
from esprof.elastic.checkpoint import dcp
from esprof.elastic.checkpoint.snapshot import NamedTensors
from esprof.elastic.proof.record import ProofRecord
from esprof.elastic.runtime.agree import gather_values, together
from esprof.elastic.runtime.transport import Transport
from esprof.elastic.verify.steplog import Fingerprint

SCHEMA = "esprof.checkpoint/2"

_MANIFEST = "manifest.json"
_MAX_MANIFEST_BYTES = 64 << 20
_METADATA = ".metadata"
_WHOLE_FOLDER = re.compile(r"step-(\d{8,})")
_UNFINISHED_FOLDERS = ".step-*.tmp"
_LOCK = ".lock"
_NO_LOCK_ERRORS = (errno.EACCES, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of a lock of another user, and of file systems without locks."""


class FileHash(msgspec.Struct, frozen=True):
    bytes: Bytes
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """The manifest of a checkpoint folder."""

    step: int
    """Number of the job's next step."""
    fingerprint: Fingerprint
    files: dict[str, FileHash]
    proven: int | None = None
    """The last step whose bits were proven when it was written; None if none was."""
    diverged: int | None = None
    """The first step whose bits had diverged, in a job that went on; None if none had."""
    schema: str = SCHEMA


def write(
    folder: Path,
    step: int,
    tensors: NamedTensors,
    fingerprint: Fingerprint,
    transport: Transport,
    group: dist.ProcessGroup | None,
    keep: int,
    proof: ProofRecord,
) -> None:
    """Write the checkpoint of a step from the `tensors` of all ranks, and remove all but the last `keep` checkpoints and the
    last one that is proven.

    All ranks call this, with a transport of `group` that nothing else uses at the same time. Tensors `shared/…` are written
    once. An older checkpoint of the same step is replaced. Raises OutputError on all ranks if the file system fails on
    one, or another job is writing to the folder.
    """
    whole = folder / f"step-{step:08d}"
    temporary = folder / f".{whole.name}.tmp"
    with ExitStack() as held:
        with together(transport), _refusals(temporary):
            if transport.rank == 0:
                folder.mkdir(parents=True, exist_ok=True)
                held.enter_context(locked(folder))
                _remove_unfinished(folder)
                temporary.mkdir()
        with together(transport), _refusals(temporary):
            dcp.write(temporary, tensors, group)
            mine = {path.name: _hash(path) for path in _files_of(temporary, transport.rank)}
        files = {
            name: FileHash(*found) for of_rank in gather_values(transport, mine) for name, found in of_rank.items()
        }
        with together(transport), _refusals(temporary):
            if transport.rank == 0:
                _seal(temporary, whole, Manifest(step, fingerprint, files, proof.proven, proof.diverged))
                _remove_all_but(folder, whole, keep, last_proven(folder, proof))


def in_folder(folder: Path) -> list[Path]:
    """All checkpoints of a folder, sorted by step; their content is not verified. Raises InputError if the folder
    cannot be read."""
    try:
        found = {path: _step(path) for path in (folder.iterdir() if folder.is_dir() else ())}
    except OSError as error:
        raise unreadable(folder, error) from error
    steps = {path: step for path, step in found.items() if step is not None}
    return sorted(steps, key=steps.__getitem__)


def last_proven(folder: Path, proof: ProofRecord) -> Path | None:
    """The newest checkpoint of a folder that comes from proven steps alone; None if there is none. Raises InputError if the
    folder cannot be read."""
    if proof.proven is None:
        return None
    proven = [path for path in in_folder(folder) if (_step(path) or 0) <= proof.first_unproven]
    return proven[-1] if proven else None


def mark_diverged(folder: Path, proof: ProofRecord, step: int) -> None:
    """Note in the manifests of checkpoints that come from steps that are not proven that the proof in `step` has found other
    bits. Raises InputError or OutputError if the folder cannot be read or written."""
    for path in in_folder(folder):
        manifest = read_manifest(path)
        if manifest.step > proof.first_unproven:
            write_bytes(path / _MANIFEST, _encoded(msgspec.structs.replace(manifest, diverged=step)))


def read_manifest(path: Path) -> Manifest:
    """The manifest of the checkpoint in the folder `path`. Raises InputError if it is not a checkpoint, MismatchError
    if another version of esprof wrote it."""
    file = path / _MANIFEST
    try:
        manifest = msgspec.json.decode(read_regular(file, _MAX_MANIFEST_BYTES), type=Manifest)
    except OSError as error:
        raise unreadable(file, error) from error
    except NOT_DECODED as error:
        raise InputError(f"is not a checkpoint manifest: {error}", path=file, remedy=_without(path)) from error
    if manifest.schema != SCHEMA:
        raise MismatchError(
            f"schema {manifest.schema!r} is not {SCHEMA!r}", path=file, remedy="Use the esprof version that wrote it."
        )
    if outside := [name for name in manifest.files if not dcp.FILE_NAME.fullmatch(name)]:
        raise InputError(f"names {outside[0]}, which is not in its folder", path=file, remedy=_without(path))
    return manifest


def verify(path: Path, manifest: Manifest, share: int = 0, shares: int = 1) -> None:
    """Raise InputError for a file that is not in the manifest or differs from it.

    Compares only every `shares`-th file, starting with number `share`, so that ranks can divide the work.
    """
    there = {file.name for file in path.glob("*.distcp")} | {_METADATA}
    for name in sorted(there - manifest.files.keys()):
        raise InputError("is not in the manifest", path=path / name, remedy=_without(path))
    for name, expected in sorted(manifest.files.items())[share::shares]:
        file = path / name
        try:
            found = FileHash(*_hash(file))
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", path=file, remedy=_without(path)) from error
        if found.bytes != expected.bytes:
            reason = f"has {found.bytes} bytes; {expected.bytes} were written"
            raise InputError(reason, path=file, remedy=_without(path))
        if found.sha256 != expected.sha256:
            raise InputError("has changed since it was written", path=file, remedy=_without(path))


def read(path: Path, want: Callable[[str], bool]) -> NamedTensors:
    """The tensors whose names `want` accepts, in host memory. Raises InputError if there is anything other than tensors."""
    reader = dcp.SafeReader(path)
    try:
        metadata = reader.read_metadata()
        tensors = {
            name: torch.empty(found.size, dtype=found.properties.dtype)
            for name, found in metadata.state_dict_metadata.items()
            if want(name) and isinstance(found, TensorStorageMetadata)
        }
        dcp.read(reader, metadata, tensors)
    except Exception as error:  # A forged file can make torch raise almost anything.
        raise InputError(f"is not a checkpoint of tensors: {error}", path=path, remedy=_without(path)) from error
    return tensors


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other jobs from writing checkpoints to the folder, where its file system has locks.

    The lock is a file, because NFS locks only what was opened for writing. Raises OutputError if another job holds it.
    """
    with ExitStack() as opened:
        try:
            file = open_regular(folder / _LOCK, os.O_RDWR | os.O_CREAT)
            opened.callback(os.close, file)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            reason = "another job is writing a checkpoint there"
            raise OutputError(reason, path=folder, remedy="Give each job a folder of its own.") from None
        except OSError as error:
            if error.errno not in _NO_LOCK_ERRORS:
                raise
        yield


def _remove_unfinished(folder: Path) -> None:
    """Remove unfinished checkpoints of a job that was killed or ran out of disk space."""
    for leftover in folder.glob(_UNFINISHED_FOLDERS):
        shutil.rmtree(leftover)


def _files_of(path: Path, rank: int) -> list[Path]:
    """The files that this rank has written."""
    return [*sorted(path.glob(f"__{rank}_*.distcp")), *([path / _METADATA] if rank == 0 else [])]


def _hash(path: Path) -> tuple[Bytes, str]:
    with open(open_regular(path), "rb") as file:
        return os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()


def _seal(temporary: Path, whole: Path, manifest: Manifest) -> None:
    """Make a checkpoint visible under its name, once all of it is on disk."""
    unseen = [name for name in manifest.files if not (temporary / name).exists()]
    if unseen:
        raise OutputError(
            f"rank 0 cannot see {unseen[0]}, which another rank wrote",
            path=temporary,
            remedy="Pass Checkpoint a folder that all hosts share.",
        )
    write_bytes(temporary / _MANIFEST, _encoded(manifest))
    _sync(temporary)
    before = _set_aside(whole) if whole.exists() else None
    temporary.rename(whole)
    _sync(whole.parent)
    if before:
        shutil.rmtree(before)


def _encoded(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def _remove_all_but(folder: Path, whole: Path, keep: int, proven: Path | None) -> None:
    """Retain the checkpoint `whole` and earlier ones, `keep` in total, and the `proven` one. Later ones are damaged: the job
    resumed without them."""
    there = in_folder(folder)
    for old in there[: there.index(whole) + 1][:-keep]:
        if old != proven:
            shutil.rmtree(_set_aside(old))


def _set_aside(whole: Path) -> Path:
    """Rename a checkpoint before its removal: a partially removed one must not look complete."""
    return whole.rename(whole.with_name(f".{whole.name}.old.tmp"))


def _step(path: Path) -> int | None:
    """The step of the checkpoint in the folder `path`, by its name; None for another folder."""
    match = _WHOLE_FOLDER.fullmatch(path.name)
    return int(match[1]) if match else None


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    """Raise OutputError if the file system fails in the block, whether the OS or torch reports it."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        refusal = _refusal(error)
        if refusal is None:
            raise
        raise OutputError(f"cannot be written: {refusal.strerror}", path=path, remedy=_ROOM_REMEDY) from error
    except CheckpointException as error:
        first = next(iter(error.failures.values()))[0]
        raise OutputError(f"cannot be written: {first}", path=path, remedy=_ROOM_REMEDY) from error


def _refusal(error: BaseException | None) -> OSError | None:
    """The OSError behind an error, if there is one: torch raises a RuntimeError of its own while it closes the file."""
    while error is not None and not isinstance(error, OSError):
        error = error.__context__
    return error


def _without(path: Path) -> str:
    return f"Restore it, or remove the checkpoints in {path.parent} to start from step 0."


_ROOM_REMEDY = "Choose a writable folder with enough free space."
