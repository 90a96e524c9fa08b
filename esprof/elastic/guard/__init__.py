"""What notices a script that would break the promise of equal bits, or let ranks wait for each other in vain."""
