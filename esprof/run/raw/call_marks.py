"""Annotations around the work of a module's call, by which the recorder tells what operations do not show."""

PREFIX = "esprof.call#"

SAME_INPUTS = f"{PREFIX}same inputs"
"""A call in the same step has had the same inputs, and drew no random numbers of PyTorch's default generators. No change of
parameters, buffers or attributes has been seen in between."""

NOT_OPTIMIZED = f"{PREFIX}not optimized"
"""The backward pass will compute gradients of the module's parameters, though no optimizer holds one of them and its
inputs need no gradient. Nothing changes the parameters, or nothing ever resets their gradients."""

DISCARDED = f"{PREFIX}gradients discarded"
"""As `NOT_OPTIMIZED`, but an optimizer holds the parameters: the last time, the gradients of the same call were discarded
before it stepped."""

NOT_HELD = f"{PREFIX}not held"
"""The backward pass will compute gradients of the module's parameters, though no optimizer holds one of them, but others of
the same model. Nothing learns that is called before it, so that nobody needs its backward pass."""

WEIGHTS_NOT_HELD = f"{PREFIX}weights not held"
"""As `NOT_HELD`, but something learns that is called before it, or within it: its backward pass is needed, though not the
gradients of its own parameters."""

FLOAT64 = f"{PREFIX}float64"
"""The module's own parameters are of 64 bits, and those of other modules of the window are not."""
