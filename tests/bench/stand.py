"""A bench at work: the folder, the figures, and the servers that stand at the moment. No work is described here."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bench.contenders import Contender, Site, nginx_origin
from bench.figures import Figures
from bench.load import Upstream, ask
from bench.machine import LOAD_CORE, SERVER_CORE, Broken, Others, free_port, running
from bench.origin import COMPLETION

Played = TypeVar("Played")
# Of one core, in a round: what else runs on the machine.
DISTURBED = 0.1


@dataclass(frozen=True)
class Server:
    """One that runs: its contender's name, its port and its process."""

    name: str
    port: int
    pid: int


@dataclass
class Bench:
    """One run. ``full``: all contenders and longer rounds; ``most``: no work has more rounds than so many.

    ``spare_s``: time for rounds that are played anew because something else wanted the cores.
    """

    folder: Path
    figures: Figures
    full: bool
    crowd: Path
    most: int
    made: int = 0
    spare_s: float = 40

    def rounds(self, full: int, quick: int) -> range:
        """The rounds of a work."""
        return range(min(self.most, full if self.full else quick))

    def undisturbed(self, play: Callable[[], Played]) -> Played:
        """A round, played anew while all else takes more than a little of the cores: of three at most the least disturbed."""
        tried: list[tuple[float, Played]] = []
        while True:
            others, began = Others(), time.monotonic()
            result = play()
            tried.append((others.share(), result))
            if tried[-1][0] < DISTURBED or len(tried) == 3 or self.spare_s <= 0:
                return min(tried, key=lambda one: one[0])[1]
            self.spare_s -= time.monotonic() - began

    def number(self) -> int:
        """Another each time: what makes a request new."""
        self.made += 1
        return self.made

    def say(self, text: str) -> None:
        """Progress, beside the results."""
        print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)

    def room(self) -> Path:
        """A folder of its own for a server."""
        room = self.folder / str(self.number())
        room.mkdir()
        return room

    def there(self, *contenders: Contender) -> list[Contender]:
        """Those whose program is installed; a note on each that is not."""
        for contender in contenders:
            if contender.missing():
                self.figures.note(f"{contender.name}: not installed here, not measured")
        return [contender for contender in contenders if not contender.missing()]

    @contextmanager
    def server(self, contender: Contender, origin: Upstream, redis: int = 0) -> Iterator[Server]:
        """A contender on the server's core."""
        room, port = self.room(), free_port()
        command = contender.command(Site(room, port, origin.url, redis))
        with running(command, port, SERVER_CORE, room / "log", contender.ready_s) as pid:
            yield Server(contender.name, port, pid)

    @contextmanager
    def redis(self) -> Iterator[int]:
        """A Redis on the load's core; its port."""
        room, port = self.room(), free_port()
        command = ["redis-server", "--port", str(port), "--save", "", "--dir", str(room)]
        with running(command, port, LOAD_CORE, room / "log"):
            yield port

    @contextmanager
    def fixed_origin(self) -> Iterator[Upstream]:
        """The fastest upstream there is."""
        room, port = self.room(), free_port()
        with running(nginx_origin(room, port, COMPLETION), port, LOAD_CORE, room / "log"):
            yield Upstream(port)

    @contextmanager
    def timed_origin(self, answer_s: float, chunks: int = 0, every_s: float = 0) -> Iterator[Upstream]:
        """The upstream that takes its time."""
        room, port = self.room(), free_port()
        times = [str(port), str(answer_s), str(chunks), str(every_s)]
        with running([sys.executable, "-m", "bench.origin", *times], port, LOAD_CORE, room / "log"):
            yield Upstream(port)


def warm(server: Server, path: str, body: str, patience_s: float = 30) -> None:
    """Ask once and look whether the answer is the upstream's. LiteLLM listens some time before it can answer."""
    rewrites = server.name.startswith("LiteLLM")
    try:
        content = ask(server.port, path, body).decode()
    except (OSError, Broken):
        if not rewrites or patience_s <= 0:
            raise
        time.sleep(0.5)
        warm(server, path, body, patience_s - 0.5)
        return
    # LiteLLM writes the answer anew; all others hand the upstream's bytes on.
    if content != COMPLETION and not (rewrites and "y" * 780 in content):
        raise Broken(f"{server.name} answered {content[:300]!r}")
