"""Numbers, bytes and times as terminals show them: short, and never more exact than anybody needs."""

from __future__ import annotations

__all__ = ["count", "per_second", "size", "span"]


def count(value: float) -> str:
    """12, 1,234, 12.3k, 4.5M."""
    if value < 10_000:
        return f"{value:,.0f}"
    return _scaled(value, 1000, ("k", "M", "G"))


def per_second(value: float) -> str:
    """0.3, 12."""
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def size(value: float) -> str:
    """Bytes: 17 B, 1.2 KiB."""
    if value < 1024:
        return f"{value:.0f} B"
    return _scaled(value, 1024, (" KiB", " MiB", " GiB"))


def _scaled(value: float, step: int, units: tuple[str, ...]) -> str:
    """``value`` in the first unit in which it is below ``step``, or in the last one."""
    value /= step
    if value < step or len(units) == 1:
        return f"{value:.1f}{units[0]}"
    return _scaled(value, step, units[1:])


def span(seconds: float | None) -> str:
    """Seconds: 0.3 s, 42 s, 3m07s, 2h05m; None is not known."""
    if seconds is None:
        return "-"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours}h{minutes_left:02}m" if hours else f"{minutes}m{rest:02}s"
