"""Training programs, half of which go wrong late, and what elastic training makes of them: `python -m benchmarks.programs`."""
