"""What several rules look at: breakdown, transfers, memory, probes, peaks of devices, and what surrounds a call."""
