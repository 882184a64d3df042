"""`python -m keyrun` is the command `keyrun`."""

from keyrun.cli import main

if __name__ == "__main__":
    main()
