"""Training programs, half of which go wrong late, and what becomes of them: `python -m benchmarks.programs`."""
