"""Slow ranks: the delay that each rank causes (`blame`), compared with the same work on other ranks (`counterparts`), and
CPU starvation of all ranks (`stalls`)."""
