"""Jobs of `benchmarks.loaders`."""
