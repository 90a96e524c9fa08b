"""A job's departure between two steps: a request arrives (termination, drain); all ranks agree and end (departure)."""
