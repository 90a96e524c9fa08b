"""ESP9xx: the quality of the evidence."""
