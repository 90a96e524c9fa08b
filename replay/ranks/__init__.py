"""Who is late: delays by rank, their counterparts on other ranks, and whether they persist."""
