"""One step of an elastic job (step): the ESTs' turns, the update, and what ranks tell each other."""
