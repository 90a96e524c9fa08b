"""What several rules look at: breakdown, transfers, memory, probes, and what surrounds a call."""
