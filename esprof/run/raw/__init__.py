"""The folder `raw` of a recording: the names of its files, and the words in them.

Standard library only: the injected recorder imports it.
"""
