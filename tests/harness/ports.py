"""Free TCP ports for processes that must be told one."""

import random
import socket
from functools import cache
from itertools import cycle

# Below Linux' ephemeral range, so that no outgoing connection takes a port between the search and its use.
LOWEST, HIGHEST = 15_000, 32_000
BLOCK = 500


class Ports:
    """A block of ports that no other process of these tests hands out, in turns: what was in use a moment ago comes last.

    The block is held by a name among the abstract Unix sockets (unix(7)), which ends with the process, however it ends.
    """

    def __init__(self) -> None:
        self._held, self._lowest = self._hold()
        self._turns = cycle(range(self._lowest, self._lowest + BLOCK))

    def __repr__(self) -> str:
        return f"<Ports {self._lowest}…{self._lowest + BLOCK - 1}>"

    def _hold(self) -> tuple[socket.socket, int]:
        blocks = list(range(LOWEST, HIGHEST, BLOCK))
        random.SystemRandom().shuffle(blocks)  # not the shared generator: hypothesis sets its seed
        for lowest in blocks:
            name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                name.bind(f"\0soloflight-test-ports-{lowest}")
            except OSError:
                name.close()
                continue
            return name, lowest
        raise RuntimeError("every block of ports is held by some test process")

    def next(self) -> int:
        """A port on 127.0.0.1 that nobody listens on now."""
        for _ in range(BLOCK):
            port = next(self._turns)
            with socket.socket() as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    sock.bind(("127.0.0.1", port))
                except OSError:
                    continue
                return port
        raise RuntimeError(f"no free port in {self!r}")


@cache
def _ports() -> Ports:
    return Ports()


def free_port() -> int:
    """A port on 127.0.0.1 that nobody listens on now, and that no test process beside this one is told."""
    return _ports().next()
