"""What-ifs on gradients: buckets, shards and compressed exchanges."""
