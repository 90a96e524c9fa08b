"""Executed what-ifs on DataLoaders: real files, really decoded, with a changed loader, store, cache or device."""
