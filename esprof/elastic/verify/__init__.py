"""What notices a script that breaks the promise of equal bits, and the proof that two trainings are equal."""
