"""For the process that agents of elastic runs, ranks without torch (`elastic_rank`) and commands are forked from."""

from __future__ import annotations

import sys

# It runs as a program, of which Python says a line where it has been imported.
del sys.modules["geocomm.elastic.agent_process"]
