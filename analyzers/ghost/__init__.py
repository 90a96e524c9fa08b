"""A reproducer of one rank: what its peers do between the collectives (`schedule`), from the replayed graph (`peers`)."""
