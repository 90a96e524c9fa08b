"""Memory of a rank: from recorded allocations (`blocks`) to its peak and what it consists of (`peak`), as recorded and after
a change of the batch or of what is kept for the backward pass (`changes`, `layers`)."""
