"""ESP9xx: the quality of the evidence, a file for each rule."""
