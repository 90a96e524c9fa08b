"""ESP9xx: quality of the evidence. A file for each rule."""
