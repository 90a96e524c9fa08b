"""`storage=2x`: storage that answers faster."""

from esprof.replay.whatif.term import Kind, refused, speed_up

TERM = Kind(
    name="storage",
    examples=("storage=2x",),
    meaning="Storage reads faster by this factor.",
    needs="Reads and decoding timed separately. No run records this yet, so the term is always declined.",
    effect=refused("needs reads and decoding of the loader timed separately, which no run records yet"),
    value=speed_up,
)
