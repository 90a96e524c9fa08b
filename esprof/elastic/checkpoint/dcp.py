"""Tensors in the layout of `torch.distributed.checkpoint`, read as untrusted files."""

import pickle
import re
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_saver import save

FILE_NAME = re.compile(r"[A-Za-z0-9_.]+")
"""Names of the files of a checkpoint: a forged one may name files elsewhere."""

_CLASSES = {
    "torch": ("Size",),
    "torch.serialization": ("_get_layout",),
    "torch.distributed.checkpoint.metadata": (
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "pathlib": ("Path", "PosixPath"),
}
"""Classes allowed in the metadata of tensors. Not `BytesStorageMetadata`: its content would be unpickled."""


class SafeReader(FileSystemReader):
    """A reader whose metadata, a pickle, cannot run code. Raises pickle.UnpicklingError if it would, or names
    files elsewhere."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with Path(self.path, ".metadata").open("rb") as file:
            metadata = _Unpickler(file).load()
        if not isinstance(metadata, Metadata):
            raise pickle.UnpicklingError(f"metadata is a {type(metadata).__name__}")
        names = (found.relative_path for found in metadata.storage_data.values())
        if outside := [name for name in names if not FILE_NAME.fullmatch(name)]:
            raise pickle.UnpicklingError(f"metadata names {outside[0]}, which is not in its folder")
        return metadata


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        module = "pathlib" if module == "pathlib._local" else module  # Its name in Python 3.13.
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or name in _CLASSES.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"metadata of tensors has no {module}.{name}")


def write(path: Path, tensors: dict[str, Tensor], group: dist.ProcessGroup | None) -> None:
    """Write the tensors of all ranks of a group into the folder `path`; a name shared by ranks is written once. Synced
    to disk on return."""
    writer = FileSystemWriter(path, sync_files=True)
    if group is not None:
        save(tensors, storage_writer=writer, process_group=group)
        return
    # The same as `save` does for a process alone, but without the warning that `save` gives then.
    planner = DefaultSavePlanner()
    planner.set_up_planner(tensors, writer.storage_meta(), is_coordinator=True)
    writer.set_up_storage_writer(True)
    plans, metadata = planner.create_global_plan([writer.prepare_local_plan(planner.create_local_plan())])
    (plan,) = writer.prepare_global_plan(plans)
    writer.finish(metadata, [writer.write_data(planner.finish_plan(plan), planner).wait()])


def read(reader: SafeReader, metadata: Metadata, tensors: dict[str, Tensor]) -> None:
    """Fill `tensors` in place, for this rank alone. torch loads each with `weights_only`."""
    planner = DefaultLoadPlanner()
    planner.set_up_planner(dict(tensors), metadata, is_coordinator=True)
    reader.set_up_storage_reader(metadata, True)
    plan = reader.prepare_local_plan(planner.create_local_plan())
    (plan,) = reader.prepare_global_plan(planner.create_global_plan([plan]))
    reader.read_data(planner.finish_plan(plan), planner).wait()
