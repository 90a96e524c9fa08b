"""What-ifs on DataLoaders: the batches that a run recorded, made by other loaders."""
