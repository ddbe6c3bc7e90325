"""Kinds of setting: a type for each, with its reader and the words for what was expected.

Every reader raises ``PydanticCustomError("expected", …)`` whose message completes "expected …".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, SecretStr
from pydantic_core import PydanticCustomError

from soloflight.config.addresses import (
    parse_admin_listen,
    parse_http_proxy,
    parse_listen,
    parse_network,
    parse_origin,
    parse_redis_url,
)
from soloflight.config.units import parse_duration, parse_size
from soloflight.core.fields import CONTROL_PREFIX, HOP_BY_HOP

T = TypeVar("T")

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110 section 5.6.2
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_PREFIX = re.compile(r"[A-Za-z0-9_.:/@-]{1,128}")
_FRAMING = frozenset(name.decode() for name in HOP_BY_HOP) | {"host", "content-length", "expect"}


class Unit:
    """Mark on a kind that is written back with a unit."""


class DurationUnit(Unit):
    """Seconds."""


class SizeUnit(Unit):
    """Bytes."""


def expected(what: str) -> PydanticCustomError:
    """The error of every reader: the words that complete "expected …"."""
    return PydanticCustomError("expected", "{what}", {"what": what})


def _reader(parse: Callable[[Any], T], what: str = "", *, over_zero: bool = False) -> Callable[[Any], T]:
    """``parse`` with its ValueError turned into ``expected(what)``, or into the error's own words."""

    def read(value: Any) -> T:
        try:
            parsed = parse(value)
        except ValueError as error:
            raise expected(what or str(error)) from None
        if over_zero and not parsed:
            raise expected(f"{what}, over 0")
        return parsed

    return read


def _checked(parse: Callable[[str], object]) -> Callable[[str], str]:
    """Text that ``parse`` takes, as it was written."""
    read = _reader(parse)

    def check(text: str) -> str:
        read(text)
        return text

    return check


def _count(value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}", value.strip(), re.ASCII):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 10**9:
        raise ValueError
    return value


def _switch(value: object) -> bool:
    """True or false; as text too, for what comes from the environment."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise ValueError


def _verify_tls(value: object) -> bool | str:
    if isinstance(value, str) and value.strip().lower() not in ("", "true", "false"):
        return value
    return _switch(value)


def _price(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError
    return float(value)


def _named(pattern: re.Pattern[str], what: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if pattern.fullmatch(text) is None:
            raise expected(what)
        return text

    return read


def _field_name(text: str) -> str:
    if _TOKEN.fullmatch(text) is None:
        raise expected("the name of a header field")
    return text


def _own_field_name(text: str) -> str:
    """The name of a field that the operator may add to upstream requests."""
    lower = _field_name(text).lower()
    if lower in _FRAMING or lower.startswith(CONTROL_PREFIX.decode()):
        raise expected("a header field that is not the proxy's own (framing, Host, X-Soloflight-*)")
    return text


def _field_value(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    if text != text.strip() or any((ord(char) < 32 and char != "\t") or ord(char) == 127 for char in text):
        raise expected("a header value in one line, without spaces around it")
    return value


def _client_key(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise expected("a key of visible ASCII characters")
    return value


def _client_keys(value: object) -> object:
    """A list; or text with commas, for what comes from the environment."""
    return [key.strip() for key in value.split(",")] if isinstance(value, str) and value else value


def _scope(text: str) -> str:
    name = text.removeprefix("header:")
    if text in ("credential", "everyone") or (name != text and _TOKEN.fullmatch(name)):
        return text
    raise expected('"credential", "everyone" or "header:NAME"')


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _method(text: str) -> str:
    return _field_name(text).upper()


_DURATION_WORDS = 'a duration: seconds, or text like "250ms", "65s", "10m", "1h"'
_SIZE_WORDS = 'a size: bytes, or text like "64KB", "8MiB"'

Duration = Annotated[float, BeforeValidator(_reader(parse_duration, _DURATION_WORDS)), DurationUnit()]
"""Seconds, 0 or more."""
Span = Annotated[float, BeforeValidator(_reader(parse_duration, _DURATION_WORDS, over_zero=True)), DurationUnit()]
"""Seconds, more than 0."""
Size = Annotated[int, BeforeValidator(_reader(parse_size, _SIZE_WORDS)), SizeUnit()]
"""Bytes, 0 or more."""
Room = Annotated[int, BeforeValidator(_reader(parse_size, _SIZE_WORDS, over_zero=True)), SizeUnit()]
"""Bytes, more than 0."""
Count = Annotated[int, BeforeValidator(_reader(_count, "a whole number, 0 or more"))]
Number = Annotated[int, BeforeValidator(_reader(_count, "a whole number", over_zero=True))]
"""A whole number, 1 or more."""
Switch = Annotated[bool, BeforeValidator(_reader(_switch, "true or false"))]
VerifyTls = Annotated[bool | str, BeforeValidator(_reader(_verify_tls, "true, false or the path of a CA bundle"))]
Price = Annotated[float, BeforeValidator(_reader(_price, "a price, 0 or more"))]

Name = Annotated[str, AfterValidator(_named(_NAME, "a name: 1 to 64 of A-Z a-z 0-9 _ . -"))]
Prefix = Annotated[str, AfterValidator(_named(_PREFIX, "a prefix: 1 to 128 of A-Z a-z 0-9 _ . : / @ -"))]
FieldName = Annotated[str, AfterValidator(_field_name)]
OwnFieldName = Annotated[str, AfterValidator(_own_field_name)]
FieldValue = Annotated[SecretStr, AfterValidator(_field_value)]
ClientKeys = Annotated[tuple[Annotated[SecretStr, AfterValidator(_client_key)], ...], BeforeValidator(_client_keys)]
Method = Annotated[str, AfterValidator(_method)]
Scope = Annotated[str, AfterValidator(_scope)]
Lowered = BeforeValidator(_lower)

ListenText = Annotated[str, AfterValidator(_checked(parse_listen))]
AdminListenText = Annotated[str, AfterValidator(_checked(parse_admin_listen))]
Origin = Annotated[str, AfterValidator(_reader(parse_origin))]
HttpProxy = Annotated[str, AfterValidator(_reader(parse_http_proxy))]
RedisUrl = Annotated[str, AfterValidator(_reader(parse_redis_url))]
Network = Annotated[str, AfterValidator(_reader(parse_network))]
