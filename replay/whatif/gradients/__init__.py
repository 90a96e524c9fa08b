"""What-ifs on gradients: bucket sizes (`buckets`, with `gloo_buckets`, `nccl_buckets` and `nccl_passes`), shards (`shards`)
and compressed exchanges (`compressed`); `backward` describes the backward pass."""
