"""Renderers and the verbs of the command line. A renderer computes nothing."""
