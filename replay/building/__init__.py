"""From a Run to its graph."""
