"""systemd's notification protocol (sd_notify(3)): readiness, reloads, stopping, and the watchdog's sign of life."""

from __future__ import annotations

import os
import socket
import time

# A manager that reads late gets its notices all the same; one that does not read holds nobody up for longer.
PATIENCE_S = 1.0


def notify(*lines: str, wait_s: float = PATIENCE_S) -> None:
    """Send ``lines`` (``READY=1``, …) to the service manager, if there is one. Never raises: a lost notice is not our fault."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(wait_s)
            sock.sendto("\n".join(lines).encode(), address)
    except OSError:
        return


def alive() -> None:
    """A sign of life. One that can not be sent at once is left out: the next one is soon due."""
    notify("WATCHDOG=1", wait_s=0.0)


def reloading() -> None:
    """A reload begins; ``notify("READY=1")`` ends it (Type=notify-reload asks for the time)."""
    notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")


def stopping(within_s: float) -> None:
    """The end begins and takes at most ``within_s``: a unit's TimeoutStopSec that is shorter is extended."""
    notify("STOPPING=1", f"EXTEND_TIMEOUT_USEC={round(within_s * 1_000_000)}")


def watchdog_s() -> float | None:
    """How often a sign of life is due (half of what the manager allows), or None where no watchdog is set for this process."""
    wanted = os.environ.get("WATCHDOG_USEC", "")
    owner = os.environ.get("WATCHDOG_PID", "")
    if not wanted.isdigit() or int(wanted) == 0 or (owner and owner != str(os.getpid())):
        return None
    return int(wanted) / 2_000_000
