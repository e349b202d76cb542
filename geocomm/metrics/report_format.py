"""What the rank that makes a report, collectors, and readers of a run store must agree on."""

from __future__ import annotations

VERSION = 3
MAX_PACKED_BYTES = 128 << 10
"""The longest report as it travels: a datagram of Linux's default size takes it."""
