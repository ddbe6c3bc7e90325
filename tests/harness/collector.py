"""A collector of OTLP over HTTP, as small as can be: it takes what is POSTed to /v1/traces and keeps its spans."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """Listens on a free port of loopback while it is entered. ``spans``, ``services``: what it got."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __repr__(self) -> str:
        return f"Collector({self.url}, {len(self.spans)} spans)"

    @property
    def url(self) -> str:
        """Its origin, as OTEL_EXPORTER_OTLP_ENDPOINT wants it."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def of(self, kind: "Span.SpanKind", **attributes: Any) -> list[Span]:
        """The spans of that kind whose attributes (``soloflight.`` in front of each name) have these values."""
        wanted = {f"soloflight.{name}": value for name, value in attributes.items()}
        return [span for span in self.spans if span.kind == kind and wanted.items() <= attributes_of(span).items()]

    def _take(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.services |= {
                one.value.string_value for one in resource.resource.attributes if one.key == "service.name"
            }
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        take = self._take

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                take(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                """A test's output is its own."""

        return Handler


def attributes_of(span: Span) -> dict[str, Any]:
    """Texts and numbers by name."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value") or "string_value") for one in span.attributes}
