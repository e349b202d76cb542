"""A rank of `harness.Ranks`, as a program: its caller says through its input what to run."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection

from support.harness import serve

channel = os.dup(0)
with open(os.devnull, "rb") as nothing:
    os.dup2(nothing.fileno(), 0)  # what a rank starts must not keep the channel open
serve(Connection(channel))
