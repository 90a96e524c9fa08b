"""The global dataflow graph of a run, its replay, and what-if questions."""
