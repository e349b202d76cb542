"""What a site's ranks read of their shards: ids in memory, whose hash was compared before.

A shard of a folder is mapped where it lies. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from geocomm.core.bad_input import BadInput
from geocomm.data.catalog import Shard
from geocomm.data.places import Folder
from geocomm.data.shard_stores import ShardStores, mapped
from geocomm.data.token_files import hash_of_range


class ShardCache:
    """The shards of one data set, for one process."""

    def __init__(self, stores: ShardStores) -> None:
        self.stores = stores
        """May be replaced by those of a newer version."""
        self._ids: dict[str, NDArray[np.unsignedinteger]] = {}

    def want(self, shards: Sequence[Shard]) -> None:
        """Say what will be read next, in this order. It replaces what was said before."""

    def ids(self, shard: Shard) -> NDArray[np.unsignedinteger]:
        """All ids of a shard, mapped; waits where they are not there yet.

        Raises BadInput where this site may not read it, or no store has the right bytes.
        """
        found = self._ids.get(shard.sha256)
        if found is None:
            found = self._ids[shard.sha256] = self._mapped(shard)
        return found

    def _mapped(self, shard: Shard) -> NDArray[np.unsignedinteger]:
        said = ""
        for copy in self.stores.copies(shard):
            path = self.stores.path(copy)
            try:
                found = hash_of_range(Folder("", path.parent), path.name, copy.offset, copy.tokens * self.stores.width)
            except OSError as error:
                said += f"; {path} of store {copy.store} cannot be read: {error}"
                continue
            if found == shard.sha256:
                begin = copy.offset // self.stores.width
                return mapped(path, self.stores.dtype)[begin : begin + copy.tokens]
            said += f"; {path} of store {copy.store} has other bytes from {copy.offset} on than were added"
        raise BadInput(f"shard {shard.sha256[:16]} cannot be read{said}: geocomm data check --deep says what is whole")

    def close(self) -> None:
        """Stop fetching."""
        self._ids.clear()
