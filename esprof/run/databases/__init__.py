"""Databases of other profilers (SQLite), read as the trace that torch.profiler would have written."""
