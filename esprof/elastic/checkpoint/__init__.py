"""Checkpoints of an elastic job: their content, writing and loading."""
