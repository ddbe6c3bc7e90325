"""A config file of a test's own, and the faults of one as lines."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from soloflight.config import ConfigError, Settings, load

Read = Callable[..., Settings]
Faults = Callable[..., list[str]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """``read(text, env, **flags)``: the settings of a file with that text."""

    def read(text: str = "", env: Mapping[str, str] = {}, **flags: object) -> Settings:
        path = tmp_path / "file.toml"
        path.write_text(text)
        return load(path, env, flags)

    return read


@pytest.fixture
def faults(read: Read) -> Faults:
    """``faults(text, env, **flags)``: each fault's line, the file called FILE; it must have one at least."""

    def faults(text: str = "", env: Mapping[str, str] = {}, **flags: object) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            read(text, env, **flags)
        assert str(caught.value).splitlines() == [str(fault) for fault in caught.value.faults]
        return [
            str(fault).replace(fault.source, "FILE", 1) if fault.source.endswith("file.toml") else str(fault)
            for fault in caught.value.faults
        ]

    return faults
