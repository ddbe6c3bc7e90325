"""A real nginx with the configuration that a test gives it, or with the one that is shipped."""

import getpass
import shutil
from pathlib import Path

from harness.ports import free_port
from harness.process import Process, wait_until

SHIPPED = Path(__file__).parents[2] / "conf" / "nginx.conf"
AROUND = """
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr info;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
{site}
}}
"""


def nginx_program() -> str:
    """Path of nginx; Debian keeps it in /usr/sbin, which is not on everyone's path."""
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise RuntimeError("no nginx: install one")
    return found


def shipped(*ports: int, **replaced: str) -> str:
    """conf/nginx.conf in front of the nodes at ``ports``. ``replaced``: other values for directives that stand there once."""
    text = SHIPPED.read_text()
    nodes = "\n".join(f"    server 127.0.0.1:{port} max_fails=0;" for port in ports)
    text = _once(text, "    server 127.0.0.1:8080 max_fails=0;", nodes)
    text = _once(text, "listen 80;", "listen 127.0.0.1:PORT;")
    for name, value in replaced.items():
        at = text.index(f"    {name} ")
        old = text[at : text.index(";", at)]
        text = _once(text, old, f"    {name} {value}")
    return text


def bare(port: int, more: str = "") -> str:
    """What many have: nothing but ``proxy_pass``. That is HTTP/1.0, a connection for each request, and buffers."""
    return f"server {{ listen 127.0.0.1:PORT; location / {{ {more} proxy_pass http://127.0.0.1:{port}; }} }}"


def _once(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"{old!r} stands there {text.count(old)} times"
    return text.replace(old, new)


class Nginx(Process):
    """A running nginx. ``site``: what stands in http { }, with PORT where its port belongs."""

    def __init__(self, folder: Path, site: str) -> None:
        self.port = free_port()
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "nginx.conf"
        config.write_text(AROUND.format(folder=folder, site=site.replace("PORT", str(self.port))))
        super().__init__(
            [nginx_program(), "-p", str(folder), "-c", str(config), "-g", f"daemon off; user {getpass.getuser()};"],
            folder / "nginx.log",
        )

    def wait_ready(self) -> None:
        """Wait until its worker runs."""

        def ready() -> bool:
            if self.exit_code is not None:
                raise RuntimeError(f"{self!r} ended while it started:\n{self.log}")
            return "start worker process " in self.log

        wait_until(ready, within_s=10, what=f"{self!r} ready")

    def stop(self) -> None:
        """End it at once, workers too."""
        if self.exit_code is None:
            self.terminate()
