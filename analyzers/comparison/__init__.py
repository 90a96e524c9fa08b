"""The comparison of two runs: by how much a step differs, and where along the critical path."""
