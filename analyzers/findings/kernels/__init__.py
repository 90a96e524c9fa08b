"""ESP7xx: kernels and padding. A file for each rule: float32 matmuls, padded batches, slow matmuls."""
