"""Data of each step: its end, CPU time, memory, batches, saves, garbage collections and stack samples."""
