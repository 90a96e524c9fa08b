"""Whether a sample depends on nothing but its number and the seed: it is made twice, and on all ranks."""

from collections.abc import Callable

from esprof.core.errors import MismatchError, UsageError
from esprof.elastic.runtime.agree import tell_all, together
from esprof.elastic.runtime.transport import Transport
from esprof.elastic.verify.content import content

_OWN_STATE = (
    "Take random numbers from random, numpy.random or torch, which are seeded for each sample, or from a generator that is "
    "made of the index; or pass Loaders, for datasets that have a state."
)


def check_sample(index: int, make: Callable[[int], object], transport: Transport) -> None:
    """Raise UsageError where `make(index)` gives another sample the second time, MismatchError where ranks have different
    ones. All ranks call this."""
    with together(transport):
        try:
            first, again = content(make(index)), content(make(index))
        except Exception as error:
            raise UsageError(
                f"sample {index} cannot be made in the training process: {type(error).__name__}: {error}",
                remedy=_OWN_STATE,
            ) from error
        if first != again:
            raise UsageError(f"sample {index} was another one when it was made a second time", remedy=_OWN_STATE)
    everyone = tell_all(transport, first)
    for rank, other in enumerate(everyone):
        if other != everyone[0]:
            raise MismatchError(
                f"sample {index} is another one on rank {rank} than on rank 0",
                remedy="Let every rank build the same dataset, from the same files; each takes its share by itself.",
            )
