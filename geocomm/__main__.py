"""`python -m geocomm COMMAND`: the command line, for launchers that start a module on every rank."""

from __future__ import annotations

from geocomm.cli.main import main

if __name__ == "__main__":
    main()
