"""ESP5xx: memory and allocator."""
