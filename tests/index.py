"""A private package index (PEP 503) with password, whose wheels are built in memory."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from portal.up.services import dies_with_parent

PASSWORD = "qwerty-of-the-index"
# A server extension for JupyterLab, in the module `labtree`.
TREE = """import subprocess, sys
from jupyter_server.base.handlers import APIHandler
class Tree(APIHandler):
    def get(self):
        import tornado
        finds = "from importlib.util import find_spec; print(find_spec('labtree') is not None)"
        started = subprocess.check_output([sys.executable, "-c", finds], text=True).strip()
        self.finish({"tree": "tall", "tornado": tornado.__file__, "started": started})
def _jupyter_server_extension_points():
    return [{"module": "labtree"}]
def _load_jupyter_server_extension(app):
    app.web_app.add_handlers(".*$", [("/api/tree", Tree)])
"""


def wheel(name: str, version: str, files: Mapping[str, str], requires: Sequence[str] = ()) -> bytes:
    info = f"{name}-{version}.dist-info"
    texts = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {each}\n" for each in requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={_digest(text)},{len(text.encode())}\n" for path, text in texts.items())
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for path, text in {**texts, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            archive.writestr(path, text)
    return made.getvalue()


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


class Index:
    """`url` includes user name and password. `asked` lists the paths of authorized GET requests."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        right = "Basic " + base64.b64encode(f"reader:{PASSWORD}".encode()).decode()
        index = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                known = self.headers.get("Authorization") == right
                found = index.answer(self.path, self.command) if known else None
                self.send_response(200 if found is not None else 404 if known else 401)
                body = found or b"no"
                kind = "application/octet-stream" if self.path.startswith("/files/") else "text/html"
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            def do_HEAD(self) -> None:
                self.do_GET()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer((host, 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://reader:{PASSWORD}@{host}:{self._server.server_port}/simple/"

    def add(self, name: str, version: str, requires: Sequence[str] = (), **files: str) -> str:
        """Adds a wheel with these modules; returns its requirement with hash."""
        return self.put(name, version, {f"{module}.py": text for module, text in files.items()}, requires)

    def put(self, name: str, version: str, files: Mapping[str, str], requires: Sequence[str] = ()) -> str:
        """Adds a wheel with any files; returns its requirement with hash."""
        made = wheel(name, version, files, requires)
        self.files[f"{name}-{version}-py3-none-any.whl"] = made
        return f"{name}=={version} --hash=sha256:{hashlib.sha256(made).hexdigest()}"

    def plugin(self, name: str, **modules: str) -> None:
        """Adds version 1.0 of a JupyterLab plugin: a page extension and a server extension, laid out as in a real wheel."""
        data = f"{name}-1.0.data/data"
        build = {"load": "static/entry.js", "extension": "./extension"}
        package = {"name": name, "version": "1.0", "jupyterlab": {"extension": True, "_build": build}}
        enabled = {"ServerApp": {"jpserver_extensions": {name: True}}}
        files = {
            f"{data}/share/jupyter/labextensions/{name}/package.json": json.dumps(package),
            f"{data}/share/jupyter/labextensions/{name}/static/entry.js": "// of tests",
            f"{data}/etc/jupyter/jupyter_server_config.d/{name}.json": json.dumps(enabled),
        }
        self.put(name, "1.0", {**{f"{path}.py": text for path, text in modules.items()}, **files})

    def answer(self, path: str, method: str = "GET") -> bytes | None:
        if method == "GET":
            self.asked.append(path)
        if path.startswith("/files/"):
            return self.files.get(path.removeprefix("/files/"))
        project = path.removeprefix("/simple/").rstrip("/")
        links = [
            f'<a href="/files/{name}#sha256={hashlib.sha256(data).hexdigest()}">{name}</a>'
            for name, data in self.files.items()
            if name.startswith(f"{project}-")
        ]
        return "\n".join(links).encode() if links else None

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def mirror(index: Index, port: int) -> Iterator[None]:
    """The package mirror in front of an index in a Kubernetes cluster, at `port` on all addresses of this machine."""
    argv = [sys.executable, "-m", "clusters.clouds.drivers.local.network.packages", str(port)]
    env = {**os.environ, "PORTAL_PACKAGE_INDEX": index.url}
    with subprocess.Popen(dies_with_parent(argv, "TERM"), env=env, cwd=Path(__file__).parents[1]) as process:
        deadline = time.monotonic() + 30
        while True:
            with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                break
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield
        process.terminate()
    assert process.returncode == 0
