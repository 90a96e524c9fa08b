"""What-ifs on gradients: other buckets (`buckets`, by `gloo_buckets` or `nccl_buckets` and `nccl_passes`), shards (`shards`)
and compressed exchanges (`compressed`), all found in the backward pass (`backward`)."""
