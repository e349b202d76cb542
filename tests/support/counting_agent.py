"""An agent that says which frames it gives to whom: `python -m support.counting_agent CONFIG`."""

from __future__ import annotations

from geocomm.core.message_log import log
from geocomm.elastic import agent_process
from geocomm.elastic.files.file_server import FileServer, FrameAsked, StateAsked
from geocomm.wire.tls_stream import TlsStream

_give = FileServer._give


async def _counted(of: FileServer, stream: TlsStream, asked: FrameAsked | StateAsked, site: str) -> None:
    if isinstance(asked, FrameAsked) and asked.offset == 0 and of._store.has_frame(**asked.named):
        log(f"gives {asked.frame} to {site}")
    await _give(of, stream, asked, site)


if __name__ == "__main__":
    FileServer._give = _counted
    agent_process.main()
