"""What every layer shares: scalars, errors, files written whole, text, plans, statistics."""
