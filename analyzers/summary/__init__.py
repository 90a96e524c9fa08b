"""What the report sums up of a run."""
