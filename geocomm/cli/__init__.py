"""The `geocomm` command line: one module per command."""
