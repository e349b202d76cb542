"""What the rank that makes a report and the collector that reads it must agree on."""

from __future__ import annotations

VERSION = 2
MAX_PACKED_BYTES = 128 << 10
"""The longest report as it travels: a datagram of Linux's default size takes it."""
