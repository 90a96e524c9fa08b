"""Snapshots of ranks that hang, and stacks of ranks that died."""
