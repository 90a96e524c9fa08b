"""The best set of changes of one job: all what-if terms that it could carry out are searched together."""
