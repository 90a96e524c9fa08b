"""What the threads of a host do in a step: loops over small operations, storms of launches, first calls, compiling, gaps in
which a thread did not run; and the CPUs that the ranks of a host share."""
