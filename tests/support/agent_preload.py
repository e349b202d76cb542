"""For the process that agents of elastic runs, ranks without torch (`elastic_rank`) and commands are forked from."""

from __future__ import annotations

import sys

import geocomm.cli.data
import geocomm.cli.main
import geocomm.data.additions
import geocomm.elastic.agent_process
import geocomm.elastic.rank_socket
import geocomm.elastic.snapshots
import geocomm.journal.member  # noqa: F401

# It runs as a program, of which Python says a line where it has been imported.
del sys.modules["geocomm.elastic.agent_process"]
