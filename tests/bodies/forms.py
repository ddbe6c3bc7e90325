"""multipart/form-data as clients write it."""

from __future__ import annotations

from collections.abc import Sequence

Written = tuple[Sequence[bytes], bytes]
"""A part: its field lines, and its content."""


def field(name: str, content: bytes | str) -> Written:
    """A form value, as SDKs write it."""
    data = content.encode() if isinstance(content, str) else content
    return [f'Content-Disposition: form-data; name="{name}"'.encode()], data


def file(name: str, filename: str, content: bytes, content_type: str = "audio/wav") -> Written:
    """An uploaded file, as SDKs write it."""
    disposition = f'Content-Disposition: form-data; name="{name}"; filename="{filename}"'
    return [disposition.encode(), f"Content-Type: {content_type}".encode()], content


def form(boundary: bytes, *parts: Written, preamble: bytes = b"", epilogue: bytes = b"\r\n") -> bytes:
    """The body. ``preamble`` must bring its own line end."""
    body = preamble
    for lines, content in parts:
        body += b"--" + boundary + b"\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + content + b"\r\n"
    return body + b"--" + boundary + b"--" + epilogue
