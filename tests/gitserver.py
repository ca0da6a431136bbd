"""A Git server for tests: `git http-backend` behind a small HTTP server, optionally with a user name and token."""

from __future__ import annotations

import base64
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from tests import ports

WHO = {"NAME": "tester", "EMAIL": "tester@example.com", "DATE": "2026-01-01T00:00:00Z"}


class Repository:
    """A bare repository in the server's folder, with a work tree beside it."""

    def __init__(self, server: GitServer, name: str) -> None:
        self.folder, self.url = server.folder / name, f"{server.url}/{name}"
        self.work = server.folder / f"{name}.work"
        self.git("init", "-q", "--bare", "-b", "main", str(self.folder), cwd=server.folder)
        self.git("init", "-q", "-b", "main", str(self.work), cwd=server.folder)

    def commit(self, files: Mapping[str, str], branch: str = "main", tag: str = "") -> str:
        """Adds files; returns the hash of the commit."""
        for name, text in files.items():
            path = self.work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.git("add", "--all")
        self.git("commit", "-q", "--allow-empty", "-m", "a commit")
        if tag:
            self.git("tag", "-a", "-m", "a tag", tag)
        self.git("push", "-q", "--force", "--tags", str(self.folder), f"HEAD:refs/heads/{branch}")
        return self.git("rev-parse", "HEAD").strip()

    def git(self, *argv: str, cwd: Path | None = None) -> str:
        env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
        env |= {f"GIT_{who}_{key}": value for who in ("AUTHOR", "COMMITTER") for key, value in WHO.items()}
        done = subprocess.run(
            ["git", *argv], cwd=cwd or self.work, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


class GitServer:
    """`login` is "name:token" if the server requires one; `asked` lists the requests as METHOD PATH."""

    def __init__(self, folder: Path, login: str = "", address: str = "127.0.0.1") -> None:
        self.folder, self.login = folder, login
        self.asked: list[str] = []
        self.redirect = ""
        self.server = ThreadingHTTPServer((address, ports.free()), self._handler())
        self.url = f"http://{address}:{self.server.server_port}"

    def repository(self, name: str = "code.git") -> Repository:
        return Repository(self, name)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        us = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer(b"")

            def do_POST(self) -> None:
                self.answer(self.rfile.read(int(self.headers["Content-Length"])))

            def answer(self, body: bytes) -> None:
                us.asked.append(f"{self.command} {self.path}")
                if us.redirect:
                    self.send_response(302)
                    self.send_header("Location", us.redirect + self.path)
                    self.end_headers()
                    return
                wanted = "Basic " + base64.b64encode(us.login.encode()).decode()
                if us.login and self.headers.get("Authorization") != wanted:
                    self.send_response(401)
                    self.send_header("WWW-Authenticate", 'Basic realm="git"')
                    self.end_headers()
                    return
                self.backend(body)

            def backend(self, body: bytes) -> None:
                parts = urlsplit(self.path)
                env = {
                    "PATH": os.environ["PATH"], "GIT_PROJECT_ROOT": str(us.folder), "GIT_HTTP_EXPORT_ALL": "1",
                    "PATH_INFO": parts.path, "QUERY_STRING": parts.query, "REQUEST_METHOD": self.command,
                    "CONTENT_TYPE": self.headers.get("Content-Type", ""), "CONTENT_LENGTH": str(len(body)),
                    "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""), "REMOTE_ADDR": "127.0.0.1", "GIT_CONFIG_COUNT": "1",
                    "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*",
                }  # fmt: skip
                done = subprocess.run(["git", "http-backend"], input=body, env=env, capture_output=True, check=False)
                head, _, content = done.stdout.partition(b"\r\n\r\n")
                lines = [line.partition(b": ") for line in head.split(b"\r\n")]
                status = next((int(value.split()[0]) for key, _, value in lines if key == b"Status"), 200)
                self.send_response(status)
                for key, _, value in lines:
                    if key != b"Status":
                        self.send_header(key.decode(), value.decode())
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """No log: the tests read `asked`."""

        return Handler


@contextmanager
def git_server(folder: Path, login: str = "", address: str = "127.0.0.1") -> Iterator[GitServer]:
    made = GitServer(folder, login, address)
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()
