"""The shapes of real jobs."""
