"""ESP7xx: kernels and padding."""
