"""Is a run whole? What its files hold (`parts.py`), and what esprof declines for want of evidence (`validate.py`)."""
