"""The line of a rank to its site's agent: hello and welcome, and what they say to each other after that."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress

from geocomm.core.errors import InvalidArgumentError
from geocomm.elastic.rank_socket import RankSocket
from geocomm.journal.messages import Down, RankHello, RankWelcome, Refused, Stop, Up
from geocomm.sync.local_steps.outer.waiting import wait_for


class AgentLine:
    """There is no connection before `begin`."""

    def __init__(self, path: str, hello: Callable[[], RankHello], heard: Callable[[Down], None]) -> None:
        """path: of the agent's socket. hello: what the rank says at each connection. heard: takes all that the agent
        says, in order. Both are called on threads of this line.
        """
        self._path, self._hello, self._heard = path, hello, heard
        self._socket: RankSocket | None = None
        self._answer: queue.SimpleQueue[RankWelcome | Refused | Stop] = queue.SimpleQueue()
        self._ended = threading.Event()

    def begin(self) -> RankWelcome:
        """Connect, and wait for the welcome; a wait is logged.

        Raises InvalidArgumentError where the run refuses this site.
        """
        self._socket = socket = RankSocket(self._path, self._hello)
        threading.Thread(target=self._hear, args=[socket], name="geocomm-hear", daemon=True).start()
        found: list[RankWelcome | Refused | Stop] = []

        def arrived(seconds: float) -> bool:
            with suppress(queue.Empty):
                found.append(self._answer.get(timeout=min(seconds, 1.0)))
            return bool(found)

        def whom() -> str:
            if socket.connected:
                return "the other ranks of this site and the run's leader"
            return f"the agent at {self._path}"

        wait_for(arrived, "the beginning", whom)
        answer = found[0]
        if not isinstance(answer, RankWelcome):
            raise not_taken_in(answer.why)
        return answer

    def say(self, message: Up) -> None:
        """Tell the agent. Dropped without a connection: after each welcome, what still holds is said again."""
        if self._socket is not None:
            self._socket.say(message)

    def close(self, limit_s: float = 2.0) -> None:
        """Send what was said, for at most `limit_s`, and end the connection: nothing more is heard. Idempotent."""
        self._ended.set()
        if self._socket is not None:
            self._socket.close(limit_s)

    def _hear(self, socket: RankSocket) -> None:
        welcomed = False
        while not self._ended.is_set():
            if not socket.wait(1.0):
                continue
            for message in socket.received():
                if not welcomed and isinstance(message, (RankWelcome, Refused, Stop)):
                    welcomed = isinstance(message, RankWelcome)
                    self._answer.put(message)
                self._heard(message)


def not_taken_in(why: str) -> InvalidArgumentError:
    """The error of a site that the run refuses."""
    return InvalidArgumentError(f"local steps: the run does not take this site in: {why}")
