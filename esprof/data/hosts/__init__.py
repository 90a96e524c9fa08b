"""How the hosts of a job send cached samples to each other."""
