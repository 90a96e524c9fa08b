"""A hash that identifies a model in plans."""

from hashlib import sha256

from torch import nn


def model_signature(model: nn.Module) -> str:
    """Hash of the name, type and shape of each parameter, in order."""
    text = "\n".join(f"{name} {one.dtype} {list(one.shape)}" for name, one in model.named_parameters())
    return sha256(text.encode()).hexdigest()[:32]
