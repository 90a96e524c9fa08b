"""Names of the stages that the recorder adds by itself."""

GARBAGE_COLLECTION = "garbage collection"
"""Python's collector, on the training thread."""
