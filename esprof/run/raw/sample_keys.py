"""Keys of samples, as the recorder notes them: whole numbers of 64 bits."""

FIRST_HASH = 1 << 62
"""An index is its own key. All other keys are noted by a hash, which is at least this number."""
