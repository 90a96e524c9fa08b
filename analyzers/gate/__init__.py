"""The gate for CI: a run compared with a baseline."""
