"""The names of stages that the recorder notes by itself."""

GARBAGE_COLLECTION = "garbage collection"
"""Python's collector, on the training thread."""
