"""How a job leaves between two steps: a request is heard (termination, drain); all ranks agree and end (departure)."""
