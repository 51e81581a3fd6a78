"""`python -m egressproxy` is the same command."""

from egressproxy.cli.main import main

if __name__ == "__main__":
    main()
