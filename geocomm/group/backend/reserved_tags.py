"""The tags of send and recv that geocomm keeps for itself in the default process group."""

from __future__ import annotations

from dataclasses import dataclass

from geocomm.group.backend.runtime import Group

FIRST_RESERVED_TAG = 0x7F000000
"""Tags from here on are geocomm's own; programs use smaller ones."""
KINDS = 4
"""The number of kinds of messages of one user of tags."""
MOST_SITES = 1 << 10
_USERS = 1 << 12


@dataclass(frozen=True)
class ReservedTags:
    """The tags of one user of messages, apart from those of others and of users before it."""

    number: int

    @classmethod
    def take(cls, world: Group) -> ReservedTags:
        """The next ones of the default group `world`. Every rank of it takes its own, all in the same order."""
        world.message_users += 1
        return cls((world.message_users - 1) % _USERS)

    def tag(self, kind: int, site: int) -> int:
        """The tag of messages of a kind (0 to below KINDS) from the site of this index."""
        return FIRST_RESERVED_TAG + (self.number * KINDS + kind) * MOST_SITES + site
