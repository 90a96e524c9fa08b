"""`cache=0.5`: a cache for the loader's reads."""

from esprof.replay.whatif.term import Kind, number, refused

TERM = Kind(
    name="cache",
    examples=("cache=0.5",),
    meaning="A cache that answers this share of the loader's reads.",
    needs="Stages of the loader, which no run holds yet: always declined.",
    effect=refused("needs the loader's reads apart from its decoding (stages), which no run holds yet"),
    value=number,
)
