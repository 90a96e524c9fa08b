"""How far a what-if may be off: the error known for the run and the intervals made of it (`known`), the steps that a fit has
not seen (`held_out`), and what changes of a kind were off by (`margins`)."""
