"""Slow ranks: the delay that each rank causes (`blame`), compared with the same work on other ranks (`counterparts`), when
ranks come to collectives (`arrivals`), and CPU starvation of all ranks (`stalls`)."""
