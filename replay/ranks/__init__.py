"""Slow ranks: the delay that each rank causes (`blame`), the same work on other ranks (`counterparts`), when ranks arrive at
collectives (`arrivals`), and CPU starvation of all ranks (`stalls`)."""
