"""What only a GPU can show of esprof, in parts that each run in a process of their own; `__main__` says how.

`parts` has a module for each part, whose `measure` gets a `Kit` (`kit`) and shows figures by it. `processes` runs a part
within its time, `hardware` says on what, `summary` is the table at the end. `jobs` are what is trained; `sizes` says how
large; `replayed` is what replay says of a recording. Every part runs on a CPU as well, in sizes that take seconds.
"""
