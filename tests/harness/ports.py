"""Free TCP ports for processes that must be told one."""

import random
import socket

# Below Linux' ephemeral range, so that no outgoing connection takes a port between the search and its use.
LOWEST, HIGHEST = 15_000, 30_000


def free_port() -> int:
    """A port on 127.0.0.1 that nobody listens on now."""
    for _ in range(200):
        port = random.randint(LOWEST, HIGHEST)
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port found")
