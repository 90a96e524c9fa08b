"""Search for learning rates while a job trains."""
