"""One step of an elastic job (step): the ESTs' turns, the update, what ranks tell each other; and how the job leaves."""
