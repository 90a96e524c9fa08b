"""The random number generators of a process, and separate states of them for each EST."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass
class RngState:
    """The state of Python's, NumPy's, and torch's CPU and CUDA generators. CUDA's is None where no GPU is used."""

    python: tuple[object, ...]
    numpy: dict[str, object]
    cpu: Tensor
    cuda: Tensor | None

    @classmethod
    def capture(cls, device: torch.device) -> "RngState":
        cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return cls(random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state(), cuda)

    def restore(self, device: torch.device) -> None:
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, device)

    def tensors(self) -> dict[str, Tensor]:
        """The state as tensors alone, so that a checkpoint or another rank can take it without unpickling anything."""
        version, words, gauss = self.python
        assert isinstance(version, int)
        assert isinstance(words, tuple)
        inner = self.numpy["state"]
        assert isinstance(inner, dict)
        numpy_more = [inner["pos"], self.numpy["has_gauss"]]
        found = {
            "python": torch.tensor([version, *words], dtype=torch.int64),
            "python_gauss": _optional(gauss),
            "numpy": torch.tensor([*inner["key"].tolist(), *numpy_more], dtype=torch.int64),
            "numpy_gauss": torch.tensor([self.numpy["gauss"]], dtype=torch.float64),
            "cpu": self.cpu,
        }
        return found if self.cuda is None else found | {"cuda": self.cuda}

    @classmethod
    def of_tensors(cls, tensors: dict[str, Tensor]) -> "RngState":
        version, *words = tensors["python"].tolist()
        *key, position, has_gauss = tensors["numpy"].tolist()
        gauss = float(tensors["python_gauss"])
        state = {"key": np.array(key, dtype=np.uint32), "pos": position}
        numpy_state = {"bit_generator": "MT19937", "state": state, "has_gauss": has_gauss}
        return cls(
            python=(version, tuple(words), None if np.isnan(gauss) else gauss),
            numpy=numpy_state | {"gauss": float(tensors["numpy_gauss"])},
            cpu=tensors["cpu"],
            cuda=tensors.get("cuda"),
        )


def seed_all(seed: int) -> None:
    """Seed all generators, as a data-parallel script does with its seed plus its rank."""
    seed_cpu(seed)
    if torch.cuda.is_initialized():  # torch.manual_seed would put it off till then, and takes ten times as long.
        torch.cuda.manual_seed_all(seed)


def seed_cpu(seed: int) -> None:
    """Seed the generators of the CPU."""
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    torch.default_generator.manual_seed(seed)


def cpu_states() -> bytes:
    """A hash of the states of the CPU's generators."""
    numpy = np.random.get_state(legacy=False)
    inner, more = numpy["state"], (numpy["has_gauss"], numpy["gauss"])
    digest = hashlib.blake2b(repr((random.getstate(), inner["pos"], more)).encode(), digest_size=16)
    digest.update(inner["key"].tobytes())
    digest.update(torch.get_rng_state().numpy().tobytes())
    return digest.digest()


def derived_seed(seed: int, *what: int | str) -> int:
    """A seed for one item of a job with this seed, such as a sample; independent of time and process."""
    digest = hashlib.blake2b(":".join(map(str, (seed, *what))).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@contextmanager
def preserved() -> Iterator[None]:
    """Leave the generators of the CPU as they were before the block, whatever it does with them."""
    before = random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the generators of the CPU for the length of the block."""
    with preserved():
        seed_cpu(seed)
        yield


def _optional(value: object) -> Tensor:
    return torch.tensor([float("nan") if value is None else value], dtype=torch.float64)
