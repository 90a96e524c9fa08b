"""Classes of jobs by their number of GPUs and of servers.

GPUs: as in the study of Philly (Jeon et al., ATC 2019), and a class for parts of a GPU.
"""

from typing import get_args

import numpy as np

from esprof.analyzers.jobs.answer import Gang, Servers

GANGS: tuple[Gang, ...] = get_args(Gang)
SERVERS: tuple[Servers, ...] = get_args(Servers)

_LARGEST_GPUS = (np.nextafter(1, 0), 1, 4, 8)
_LARGEST_SERVERS = (1, 2, 4)


def gang_of(gpus: np.ndarray) -> np.ndarray:
    """Index in `GANGS` of each number of GPUs, int64[n]."""
    return np.searchsorted(_LARGEST_GPUS, gpus)


def servers_of(servers: np.ndarray) -> np.ndarray:
    """Index in `SERVERS` of each number of servers, int64[n]."""
    return np.searchsorted(_LARGEST_SERVERS, servers)
