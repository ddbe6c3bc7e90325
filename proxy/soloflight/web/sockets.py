"""What the kernel knows of a client's socket, and a close that no client can take for a clean end."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios

_LINGER_RESET = struct.pack("ii", 1, 0)


def reset_on_close(sock: socket.socket) -> None:
    """The socket's close sends RST, and discards what has not left yet."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)


def outstanding(transport: asyncio.WriteTransport) -> int:
    """Bytes that the client has not taken yet, here and in the kernel, which wakes us only when half of its queue is free."""
    return transport.get_write_buffer_size() + unsent(transport.get_extra_info("socket"))


def unsent(sock: socket.socket | None) -> int:
    """Bytes in the kernel's send queue that the peer has not acknowledged (SIOCOUTQ); 0 where it can not be told."""
    if sock is None or sock.fileno() < 0:
        return 0
    try:
        return int(struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0" * 4))[0])
    except OSError:
        return 0
