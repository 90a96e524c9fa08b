"""`cache=0.5`: a cache for the loader's reads."""

from esprof.replay.whatif.term import Kind, number, refused

TERM = Kind(
    name="cache",
    examples=("cache=0.5",),
    meaning="A cache answers this share of the loader's reads.",
    needs="Reads and decoding timed separately. No run records this yet, so the term is always declined.",
    effect=refused("needs reads and decoding of the loader timed separately, which no run records yet"),
    value=number,
)
