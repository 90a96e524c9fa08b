"""The Run, its readers and its writers."""
