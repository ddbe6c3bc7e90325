# soloflight in a container: docs/running.md, "Container".
#
#   docker build -t soloflight .
#   docker run -p 8080:8080 -e SOLOFLIGHT_UPSTREAM=https://api.openai.com soloflight
#
# Further words go to `soloflight`: docker run … soloflight serve --workers 2, docker run … soloflight check FILE.

FROM python:3.13-slim-bookworm AS build
WORKDIR /build
# A venv without pip, filled by this stage's: nothing that installs comes along.
RUN python -m venv --without-pip /opt/soloflight
COPY setup.cfg pyproject.toml README.md LICENSE ./
COPY proxy proxy
COPY plugins plugins
RUN pip --python /opt/soloflight/bin/python install --no-cache-dir --disable-pip-version-check .

FROM python:3.13-slim-bookworm
LABEL org.opencontainers.image.title="soloflight" \
      org.opencontainers.image.description="Identical LLM requests in flight make one upstream call" \
      org.opencontainers.image.licenses="Apache-2.0"
# For --workers over 1 without a Redis of one's own: their private one. Debian's, for its security updates: no fixed version.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends redis-server \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/soloflight /opt/soloflight
ENV PATH=/opt/soloflight/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    SOLOFLIGHT_LISTEN=0.0.0.0:8080
# Nobody that the image knows; a number, so that Kubernetes' runAsNonRoot can tell.
USER 65532:65532
WORKDIR /tmp
EXPOSE 8080
STOPSIGNAL SIGTERM
# 200 ready; 503 while it drains. What Redis and the upstream do is not its matter.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import http.client, os, sys; port = os.environ['SOLOFLIGHT_LISTEN'].rpartition(':')[2]; to = http.client.HTTPConnection('127.0.0.1', int(port), timeout=2); to.request('GET', '/_soloflight/health'); sys.exit(to.getresponse().status != 200)"]
ENTRYPOINT ["soloflight"]
CMD ["serve"]
