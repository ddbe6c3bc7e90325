"""F2, settings: what may be set, how it is read, and what is wrong with it.

Here live the settings' shapes, their defaults, units, sources (flag > environment > file > default) and
the readable fault lines. Values leave this package checked and immutable. Nothing may be opened,
started or contacted from here but the config file itself.

    units, addresses    what a person may write for a duration, a size, a listener, a URL
    kinds               a type per kind of setting
    models              the sections;  stage_rules: stages, and how they inherit
    checks              what binds several keys together
    sources, faults     where a value comes from;  what is wrong with it
    load, render        file + environment + flags -> Settings -> TOML without secrets
"""

from soloflight.config.addresses import Listen
from soloflight.config.faults import ConfigError, ConfigFault
from soloflight.config.load import load, stages
from soloflight.config.models import Settings, Upstream
from soloflight.config.render import effective
from soloflight.config.sources import config_path

__all__ = [
    "ConfigError",
    "ConfigFault",
    "Listen",
    "Settings",
    "Upstream",
    "config_path",
    "effective",
    "load",
    "stages",
]
