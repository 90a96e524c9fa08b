"""The steps of the whole run, inside and outside of windows."""
