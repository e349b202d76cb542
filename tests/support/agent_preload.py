"""For the process that agents of elastic runs, ranks without torch (`elastic_rank`) and commands are forked from."""
# ruff: noqa: F401

from __future__ import annotations

import sys

import geocomm.cli.commands
import geocomm.cli.data
import geocomm.data.additions
import geocomm.elastic.agent_process
import geocomm.elastic.files.snapshots
import geocomm.elastic.journal.member
import geocomm.elastic.site.rank_socket

# It runs as a program, of which Python says a line where it has been imported.
del sys.modules["geocomm.elastic.agent_process"]
