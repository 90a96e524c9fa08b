"""The run that an elastic job records of itself."""
