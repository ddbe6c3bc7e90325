"""Real processes, started and ended by pid, with their output in a file and every wait bounded."""

import asyncio
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from harness.stalls import lasted

POLL_S = 0.02


def wait_until(holds: Callable[[], bool], *, within_s: float, what: str) -> None:
    """Look again and again until ``holds()``; ``TimeoutError`` that names ``what`` after ``within_s``."""
    begun = time.monotonic()
    while not holds():
        if lasted(begun) > within_s:
            raise TimeoutError(f"not within {within_s} s: {what}")
        time.sleep(POLL_S)


async def eventually(holds: Callable[[], bool], within_s: float = 10.0) -> None:
    """The same for a test's loop, which goes on in between: for what no event tells, such as a metric."""
    begun = time.monotonic()
    while not holds():
        if lasted(begun) > within_s:
            raise TimeoutError(f"not within {within_s} s")
        await asyncio.sleep(POLL_S)


class Process:
    """A child process whose stdout and stderr go to one file. ``leads_a_group``: signals can be sent to it and its children."""

    leads_a_group = False

    def __init__(
        self,
        command: Sequence[str],
        log_file: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.argv = list(command)
        self.log_file = log_file
        with log_file.open("ab") as log:
            self.child = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
                cwd=cwd,
                start_new_session=self.leads_a_group,
            )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} pid={self.pid} exit={self.exit_code}>"

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; -9 for SIGKILL."""
        return self.child.poll()

    @property
    def log(self) -> str:
        """All output so far."""
        return self.log_file.read_text(errors="replace")

    def wait_log(self, pattern: str, *, within_s: float = 15.0) -> re.Match[str]:
        """Wait until the output has ``pattern`` (a regular expression)."""
        wait_until(
            lambda: re.search(pattern, self.log) is not None,
            within_s=within_s,
            what=f"{pattern!r} in the log of {self!r}:\n{self.log[-2000:]}",
        )
        found = re.search(pattern, self.log)
        assert found is not None
        return found

    def send(self, signal_number: int) -> None:
        """Send a signal; one that has already ended is left alone."""
        if self.exit_code is None:
            self.child.send_signal(signal_number)

    def freeze(self) -> None:
        self.send(signal.SIGSTOP)

    def thaw(self) -> None:
        self.send(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once, and wait for that."""
        self.send(signal.SIGKILL)
        self.child.wait(10)

    def wait(self, *, within_s: float = 10.0) -> int:
        """Wait for its end; gives the exit code."""
        return self.child.wait(within_s)

    def terminate(self, *, within_s: float = 10.0) -> int:
        """SIGTERM, then wait; one that does not end in time is killed, and that is a TimeoutError."""
        self.thaw()
        self.send(signal.SIGTERM)
        try:
            return self.child.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(f"{self!r} did not end in {within_s} s:\n{self.log[-4000:]}") from None

    def _status_kb(self, name: str) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(rf"^{name}:\s+(\d+) kB", status, re.MULTILINE)
        assert found is not None
        return int(found[1])

    def rss(self) -> int:
        """Resident memory now, in bytes."""
        return self._status_kb("VmRSS") * 1024

    def peak_rss(self) -> int:
        """The highest resident memory since the start or ``reset_peak``, in bytes."""
        return self._status_kb("VmHWM") * 1024

    def reset_peak(self) -> int:
        """Begin a new peak; gives the resident memory now."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")
        return self.rss()

    def cpu_s(self) -> float:
        """For how long its main thread, which is its loop's, has computed, in seconds."""
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0]) / 1e9

    def open_files(self) -> int:
        """Number of open file descriptors, sockets included."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))


def http_status(url: str, *, within_s: float = 3.0) -> int | None:
    """Status of a GET; None if nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=within_s) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return None
