"""Hashes in the place of names, so that results can be shared: the same name has the same hash everywhere.

A hash hides a name from those who do not know it; who guesses the name can confirm it.
"""

import re
from hashlib import blake2b

_DIGEST_BYTES = 5
"""Among 10,000 names, two share a hash of this length in one of 20,000 cases."""

_LETTERS = str.maketrans("0123456789abcdef", "bcdghjkmnpqrtvwx")
"""A hash in these letters contains none of the words by which rules know names, such as `f16` or `send`."""


_RANKS = re.compile(r"[\d,-]*")


def hashed(kind: str, name: str) -> str:
    """`op-dtvqhgnxrw` for a name."""
    digest = blake2b(name.encode("utf-8", "replace"), digest_size=_DIGEST_BYTES).hexdigest()
    return f"{kind}-{digest.translate(_LETTERS)}"


def hashed_group(name: str) -> str:
    """`group-dtvqhgnxrw` for the name of a process group; one that is made of numbers stays."""
    return name if _RANKS.fullmatch(name) else hashed("group", name)
