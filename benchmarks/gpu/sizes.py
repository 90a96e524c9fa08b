"""How large the jobs are: on a GPU, steps of milliseconds that the GPU fills or does not; on a CPU, tiny."""

from benchmarks.gpu.kit import Kit

LARGE, SMALL, SHARED = "large kernels", "small kernels", "shared GPU"


def size(kit: Kit, kind: str) -> list[str]:
    """The arguments of a job of a kind: kernels that fill the GPU, kernels that leave it waiting for launches, or several
    ranks on one GPU."""
    text = _CUDA[kind] if kit.device == "cuda" else _CPU[kind]
    return text.split()


_CUDA = {
    LARGE: "--hidden 512 --layers 8 --batch 32 --context 256",
    SMALL: "--hidden 128 --layers 6 --batch 4 --context 32",
    SHARED: "--hidden 512 --layers 4 --batch 8 --context 128",
}
_CPU = {
    LARGE: "--hidden 64 --layers 2 --batch 8 --context 32",
    SMALL: "--hidden 16 --layers 1 --batch 2 --context 8",
    SHARED: "--hidden 32 --layers 1 --batch 4 --context 16",
}
