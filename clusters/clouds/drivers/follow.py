#!/usr/bin/env python3
"""Follows append-only files of a bucket, such as event files: appends new bytes to a local copy of each.

TensorBoard keeps a file open and continues where it stopped, so a copy is never rewritten: if the original is replaced, the new
one gets a new name beside it. Replacement is detected by fetching the copy's last bytes again with what follows them: they
contain checksums and times, which differ in another file. The copies are the only state.

rclone speaks S3, in a separate process that holds the keys, over a Unix socket: it lists (only matching names, all levels, one
request per thousand files) and returns ranges of bytes. This is also the program `follow` of docker/rclone, so it imports only
the standard library:

    follow --every SECONDS REMOTE:BUCKET/FOLDER PATH [REMOTE:BUCKET/FOLDER PATH ...]
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

PATTERN = "*tfevents*"
# Seconds between rounds: at least EVERY and SHARE times the duration of a round, because listing a million checkpoints must not
# keep a server busy, and at most LONGEST.
EVERY, SHARE, LONGEST = 5.0, 10, 120.0
OVERLAP = 4096
CHUNK = 4 * 1024 * 1024
# Limits per folder, so that the disk is not filled with more than people can view.
MAX_FILES, MAX_BYTES = 5000, 8 * 1024**3
MAX_LIST = 64 * 1024 * 1024
ANSWER_SECONDS = 120
AGAIN = re.compile(r"\.again-(\d{1,9})\Z")


class Trouble(Exception):
    """The files cannot be followed now. The text is rclone's or the system's."""


@dataclass(frozen=True)
class Listed:
    """A file in the bucket. `stamp` changes when it is stored again."""

    path: str
    size: int
    stamp: str


class Remote(Protocol):
    """Both methods raise Trouble."""

    def list(self) -> Sequence[Listed]:
        """Returns the files to follow; empty if there is no such folder (yet)."""

    def read(self, path: str, start: int, length: int) -> bytes:
        """Returns at most `length` bytes from `start`: fewer at the end, none beyond it or if the file is gone."""


@dataclass
class Copy:
    """The copy of one file. `seen`: the listing at which the copy was complete. `number`: how many files have had its path."""

    path: str
    number: int = 1
    length: int = 0
    seen: Listed | None = None

    @property
    def name(self) -> str:
        return self.path if self.number == 1 else f"{self.path}.again-{self.number}"


class Follower:
    """Copies one folder of a bucket into `folder`."""

    def __init__(
        self, remote: Remote, folder: str, *, overlap: int = OVERLAP, chunk: int = CHUNK, most: int = MAX_BYTES
    ) -> None:
        self.remote, self.folder = remote, folder
        self.overlap, self.chunk, self.most = overlap, chunk, most
        self.problem = ""
        self.copies = {copy.path: copy for copy in self._found()}
        self.held = sum(copy.length for copy in self.copies.values())

    def round(self) -> bool:
        """Lists once, and fetches a piece of each file that has grown. Returns whether more can be fetched at once. Raises
        Trouble; sets `problem` to what affects single files."""
        self.problem, more = "", False
        listed = [each for each in self.remote.list() if is_plain(each.path)]
        if len(listed) > MAX_FILES:
            self.problem = f"there are {len(listed)} event files, and {MAX_FILES} are followed"
        for each in sorted(listed, key=lambda file: file.path)[:MAX_FILES]:
            try:
                more = self._follow(each) or more
            except OSError as error:
                self.problem = self.problem or f"{each.path} cannot be kept: {error.strerror}"
        return more

    def _follow(self, listed: Listed) -> bool:
        copy = self.copies.setdefault(listed.path, Copy(listed.path))
        if copy.seen == listed:
            return False
        if listed.size < copy.length:
            self._begin_anew(copy)
        start = max(0, copy.length - self.overlap)
        wanted = min(listed.size, copy.length + self.chunk) - start
        data = self.remote.read(listed.path, start, wanted) if wanted else b""
        known = self._tail(copy, start)
        if len(data) < wanted:
            # The file was replaced after it was listed; the next listing has the new one.
            return False
        if data[: len(known)] != known:
            self._begin_anew(copy)
            return True
        if self.held + len(data) - len(known) > self.most:
            self.problem = self.problem or f"event files of more than {self.most / 1024**3:.0f} GiB are not followed"
            return False
        self._append(copy, data[len(known) :])
        if copy.length < listed.size:
            return True
        copy.seen = listed
        return False

    def _append(self, copy: Copy, data: bytes) -> None:
        path = os.path.join(self.folder, copy.name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            while data:
                written = os.write(handle, data)
                data, copy.length, self.held = data[written:], copy.length + written, self.held + written
        finally:
            os.close(handle)

    def _tail(self, copy: Copy, start: int) -> bytes:
        if start == copy.length:
            return b""
        with open(os.path.join(self.folder, copy.name), "rb") as file:
            file.seek(start)
            return file.read(copy.length - start)

    def _begin_anew(self, copy: Copy) -> None:
        """Deletes a copy whose original was replaced. Readers keep their open file and find the new one beside it."""
        if copy.length:
            os.unlink(os.path.join(self.folder, copy.name))
            self.held -= copy.length
        copy.number, copy.length, copy.seen = copy.number + 1, 0, None

    def _found(self) -> list[Copy]:
        """Returns the copies that an earlier process left."""
        found: dict[str, Copy] = {}
        for top, _, names in os.walk(self.folder):
            for name in names:
                whole = os.path.join(top, name)
                path = os.path.relpath(whole, self.folder)
                again = AGAIN.search(path)
                copy = Copy(AGAIN.sub("", path), int(again[1]) if again else 1, os.stat(whole).st_size)
                if copy.path not in found or found[copy.path].number < copy.number:
                    found[copy.path] = copy
        return list(found.values())


def is_plain(path: str) -> bool:
    """True if a file can be copied under this name and is not in the trash (TRASH of datastores/listing.py)."""
    return not AGAIN.search(path) and "\0" not in path and not {"", ".", "..", ".portal-trash"} & set(path.split("/"))


class Rclone:
    """rclone serving a Unix socket, which is in `folder`. `env` defines the remotes with their keys."""

    def __init__(self, program: str, folder: str, env: Mapping[str, str], before: Callable[[], None] | None) -> None:
        self.socket = os.path.join(folder, "rclone")
        if os.path.exists(self.socket):
            os.unlink(self.socket)
        flags = ("--config=", "--log-level=ERROR", "--low-level-retries=3", "--contimeout=10s", "--timeout=60s")
        serve = ("--rc-serve", "--rc-no-auth", f"--rc-addr=unix://{self.socket}", "--rc-job-expire-duration=1s")
        self.process = subprocess.Popen(
            [program, "rcd", *serve, *flags, "--use-server-modtime", f"--include={PATTERN}", "--s3-no-check-bucket"],
            env={**env, "GOMEMLIMIT": "192MiB"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            preexec_fn=before,
        )

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Returns status and body of an answer. Raises Trouble."""
        connection = _Connection(self.socket)
        said = None if body is None else json.dumps(body).encode()
        kind = {} if body is None else {"Content-Type": "application/json"}
        try:
            connection.request(method, path, body=said, headers={**kind, **(headers or {})})
            answer = connection.getresponse()
            data = answer.read(MAX_LIST + 1)
        except (OSError, http.client.HTTPException) as error:
            raise Trouble(f"rclone does not answer: {error}") from error
        finally:
            connection.close()
        if len(data) > MAX_LIST:
            raise Trouble("there are too many event files")
        return answer.status, data


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("rclone", timeout=ANSWER_SECONDS)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Bucket:
    """A folder of a bucket. `remote` is in rclone's syntax: name:bucket/folder."""

    def __init__(self, rclone: Rclone, remote: str) -> None:
        self.rclone = rclone
        name, _, folder = remote.partition(":")
        self.name, self.folder = name + ":", folder.rstrip("/")

    def list(self) -> list[Listed]:
        options = {"recurse": True, "filesOnly": True, "noMimeType": True}
        asked = {"fs": self.name, "remote": self.folder, "opt": options}
        status, data = self.rclone.ask("POST", "/operations/list", asked)
        said = json.loads(data)
        if status == 404 or (status != 200 and "directory not found" in str(said.get("error"))):
            return []
        if status != 200:
            raise Trouble(str(said.get("error", status)))
        cut = len(self.folder) + 1
        return [Listed(each["Path"][cut:], int(each["Size"]), str(each["ModTime"])) for each in said["list"] or ()]

    def read(self, path: str, start: int, length: int) -> bytes:
        where = urllib.parse.quote(f"/[{self.name}]/{self.folder}/{path}")
        status, data = self.rclone.ask("GET", where, headers={"Range": f"bytes={start}-{start + length - 1}"})
        if status in (404, 416):
            return b""
        if status not in (200, 206):
            raise Trouble(data.decode(errors="replace").strip() or f"rclone answers {status}")
        return data if status == 206 else data[start : start + length]


def run(
    pairs: Sequence[tuple[str, str]],
    *,
    program: str,
    folder: str,
    env: Mapping[str, str],
    every: float,
    tell: Callable[[Sequence[str], bool], None],
    before: Callable[[], None] | None = None,
) -> None:
    """Follows `pairs` of remote and local folder until killed or rclone ends. `folder` is for its private files. After each
    round calls `tell` with one problem or "" per pair, and whether all were reached. Calls `before` in rclone's process."""
    rclone = Rclone(program, folder, env, before)
    try:
        while not os.path.exists(rclone.socket):
            if rclone.process.poll() is not None:
                raise SystemExit("rclone ended at its start")
            time.sleep(0.02)
        followers = [Follower(Bucket(rclone, remote), path) for remote, path in pairs]
        while rclone.process.poll() is None:
            began = time.monotonic()
            problems, reached, more = _round(followers)
            tell(problems, reached)
            if not reached:
                time.sleep(every)
            elif not more:
                time.sleep(min(LONGEST, max(every, SHARE * (time.monotonic() - began))))
        raise SystemExit("rclone ended")
    finally:
        rclone.process.kill()
        rclone.process.wait()


def _round(followers: Sequence[Follower]) -> tuple[list[str], bool, bool]:
    """Returns the problem of each follower, whether all were reached, and whether more can be fetched at once."""
    problems, reached, more = [], True, False
    for follower in followers:
        try:
            more = follower.round() or more
            problems.append(follower.problem)
        except Trouble as trouble:
            problems.append(str(trouble))
            reached = False
    return problems, reached, more


def main(argv: Sequence[str]) -> None:
    every, words = float(argv[1]), argv[2:]
    told: Sequence[str] = ()

    def tell(problems: Sequence[str], reached: bool) -> None:
        nonlocal told
        if reached:  # the container's startup probe checks for this file
            open(os.path.join(os.environ["HOME"], "reached"), "w").close()
        if problems != told:
            told = problems
            print(*filter(None, problems), sep="\n", file=sys.stderr, flush=True)

    # Process 1 of a container ignores SIGTERM by default.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    pairs = list(zip(words[::2], words[1::2], strict=True))
    run(pairs, program="rclone", folder=os.environ["HOME"], env=os.environ, every=every, tell=tell)


if __name__ == "__main__":
    main(sys.argv[1:])
