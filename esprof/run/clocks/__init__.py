"""Offsets and drifts between the clocks of ranks and hosts."""
