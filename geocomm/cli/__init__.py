"""The `geocomm` command line: one module per command.

Nothing imports it. Begin with `commands.py`, which imports the module of the command that is asked for, and no other.
"""
