"""ESP2xx: ranks and stragglers."""
