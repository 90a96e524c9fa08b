"""Integers in little memory."""

import numpy as np


def narrow(values: np.ndarray) -> np.ndarray:
    """Return the integers in the smallest type that holds them all."""
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    # A signed type that holds -n - 1 holds n.
    return values.astype(np.min_scalar_type(high if low >= 0 else min(low, -high - 1)))
