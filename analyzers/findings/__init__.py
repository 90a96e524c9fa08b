"""One module for each family of findings, and the catalogue that explains them."""
