"""The names of keys and channels. docs/redis.md lists them; nothing else makes one."""

from __future__ import annotations

from dataclasses import dataclass

SCHEMA = 1
"""Version of everything that is stored. Nodes of another schema do not see it; they meet nobody."""

PARTS = ("record", "watchers", "log", "answer", "outcome")


@dataclass(frozen=True, slots=True)
class Names:
    """Names under one prefix. All that belongs to a flight has its key in braces: one slot of a cluster."""

    prefix: str

    @property
    def root(self) -> str:
        """In front of every name."""
        return f"{self.prefix}:{SCHEMA}:"

    def flight(self, key: str) -> tuple[str, ...]:
        """The keys of a flight, in the order of the scripts' KEYS."""
        start = f"{self.prefix}:{SCHEMA}:{{{key}}}:"
        return tuple([start + part for part in PARTS])

    def session(self, key: str) -> tuple[str]:
        """The key of a session's lock."""
        return (f"{self.root}{{{key}}}:session",)

    def notices(self, key: str) -> str:
        """The channel on which a flight's listeners are told."""
        return f"{self.root}{{{key}}}:notices"

    def node(self, node: str) -> str:
        """The channel on which one node is told: that a flight of its own is wanted live, and of session locks."""
        return f"{self.root}node:{node}"

    @property
    def fleet(self) -> str:
        """The channel on which every node is told."""
        return f"{self.root}fleet"

    @property
    def marks(self) -> tuple[str]:
        """The hash that holds the fleet's marks: name and time in ms."""
        return (f"{self.root}marks",)

    @property
    def scope(self) -> str:
        """The key that holds the fleet's secret for credential scopes."""
        return f"{self.root}scope"

    @property
    def health(self) -> str:
        """The key that is written to see whether Redis takes writes."""
        return f"{self.root}health"
