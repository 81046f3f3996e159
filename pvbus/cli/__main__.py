"""`python -m pvbus.cli`: the same as the command `pvbus`."""

from pvbus.cli.main import main

if __name__ == "__main__":
    main()
