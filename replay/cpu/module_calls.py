"""Calls of modules in a trace."""

import numpy as np

from esprof.run.raw.module_events import MODULE_PREFIX
from esprof.run.schema import Table


def is_module_call(events: Table) -> np.ndarray:
    """Mask of the calls of modules, bool[events]."""
    mask: np.ndarray = events.is_kind("python") & events.matches("name", lambda name: name.startswith(MODULE_PREFIX))
    return mask
