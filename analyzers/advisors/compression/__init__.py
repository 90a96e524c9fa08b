"""Which gradients to compress, how and where: priced by replay, with how far the choice may be from the best one."""
