"""Offsets of the ranks' clocks from rank 0's, and the agreed first steps of windows."""
