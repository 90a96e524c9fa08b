"""`compress=powersgd:4`: compressed gradients."""

from esprof.replay.whatif.term import Kind, anything, refused

TERM = Kind(
    name="compress",
    examples=("compress=powersgd:4",),
    meaning="Gradients compressed by this codec.",
    needs="Measured costs of the codec and of the collectives, which no run holds yet: always declined.",
    effect=refused(
        "needs measured costs of the compressor and of the collectives (a probe), which this run does not hold"
    ),
    value=anything,
)
