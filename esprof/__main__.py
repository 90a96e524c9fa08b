"""`python -m esprof`."""

from esprof.cli import main

if __name__ == "__main__":
    main()
