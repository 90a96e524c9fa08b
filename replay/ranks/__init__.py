"""Who is late: the delay that each rank causes (`blame`), by the same work on other ranks (`counterparts`), if that is no
chance (`persistence`); and ranks that are all starved of CPU (`stalls`)."""
