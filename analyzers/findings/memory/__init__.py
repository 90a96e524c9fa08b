"""ESP5xx: memory and allocator. A file for each rule: allocator calls, memory near its limit, fragmentation."""
