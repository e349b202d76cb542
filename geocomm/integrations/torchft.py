"""torchft over geocomm: replica groups at distant sites that come and go while the others train on.

    from geocomm.integrations.torchft import ProcessGroupGeocomm
    manager = torchft.Manager(pg=ProcessGroupGeocomm(), ...)

This module needs the package torchft (extra torchft of geocomm) and raises ImportError without it.
"""

# torchft is not installed where pyright runs.
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import torch
import torch.distributed as dist

from geocomm.core.errors import AbortedError
from geocomm.core.installation import install_command
from geocomm.core.options import Options
from geocomm.group.backend.group_creation import create_elastic_backend
from geocomm.group.membership.own_address import advertised, store_host

try:
    from torchft.process_group import ProcessGroupWrapper  # pyright: ignore[reportMissingImports] - optional
except ImportError as error:
    raise ImportError(f"geocomm.integrations.torchft needs torchft ({error}): {install_command('torchft')}") from error

if TYPE_CHECKING:
    from geocomm._C import ProcessGroupGeocomm as NativeProcessGroup


class ProcessGroupGeocomm(ProcessGroupWrapper):  # pyright: ignore[reportUntypedBaseClass]
    """A process group for torchft's Manager in place of ProcessGroupGloo, over replica groups at several sites.

    It connects the ranks of one number in all replica groups.
    GEOCOMM_SITE names the site of a replica group; those at one site talk through Gloo or NCCL. Each configuration
    makes a new geocomm group of the ranks that are there, over new connections, in the same processes. A failed
    operation raises geocomm's errors; torchft's Manager then discards the step.

    Args:
        timeout: For meeting the other ranks, and for every operation.
        options: The options of each group; None: those of the environment, read at each configuration. Without
            `address` it is the address of the route to TORCHFT_LIGHTHOUSE, else to the store that torchft names.

    Example:
        In each replica group:

            manager = torchft.Manager(pg=ProcessGroupGeocomm(), ...)
    """

    def __init__(self, timeout: timedelta = timedelta(seconds=60), options: Options | None = None) -> None:
        super().__init__(timeout)
        self._options = options
        self._backend: NativeProcessGroup | None = None
        self._aborted = False

    def getBackendName(self) -> str:
        """The name of the backend for torchft's messages."""
        return "torchft-geocomm"

    def _create_pg(self, store: dist.Store, rank: int, world_size: int) -> dist.ProcessGroup:
        self._aborted = False
        options = self._options or Options()
        if options.address is None:
            options = options.replace(address=",".join(advertised(None, _meeting_host(store))))
        backend = create_elastic_backend(store, rank, world_size, self._timeout, options)
        group = dist.ProcessGroup(store, rank, world_size)
        group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            group._register_backend(torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, backend)
        self._backend = backend
        return group

    def abort(self, errored: bool = True) -> None:
        """End the group; the next configuration makes another. Any thread may call it.

        Args:
            errored: End it at once; operations in flight fail on all ranks. False, as torchft calls it before a
                configuration: operations in flight get some seconds, so that a rank that is behind keeps its step.
        """
        if errored:
            self._aborted = True
            super().abort(errored)
        self.shutdown()

    def shutdown(self) -> None:
        """End the group in good order."""
        backend, self._backend, self._pg = self._backend, None, None
        if backend is not None:
            backend.shutdown()

    def errored(self) -> Exception | None:
        """The error of the group.

        Returns:
            AbortedError between an `abort` and the next configuration, else None; failed operations have raised their
            own errors.
        """
        return AbortedError("the process group was aborted") if self._aborted else None

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time that meeting the other ranks, and every operation, may take.

        Args:
            timeout: The time.
        """
        super().set_timeout(timeout)
        if self._pg is not None:
            self._pg.set_timeout(timeout)


def _meeting_host(store: dist.Store) -> str:
    return urlsplit(os.environ.get("TORCHFT_LIGHTHOUSE", "")).hostname or store_host(store)
