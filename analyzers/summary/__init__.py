"""Summary of a run for the report."""
