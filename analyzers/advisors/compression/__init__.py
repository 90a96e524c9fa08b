"""Advice on gradient compression, priced by replay, with the gap to the optimum."""
