"""Fuzzing of all files that a user or another process may hand over: `python -m benchmarks.fuzz`."""
