"""A whole elastic run in one process and in virtual time: real agents over an invented network. Begin with
`whole_run.py`."""
