"""A soak: elastic jobs of many steps under everything that befalls jobs of days: `python -m benchmarks.soak`."""
