"""What the flight recorder of a rank saw, and which ranks stood still."""
