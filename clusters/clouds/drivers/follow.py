#!/usr/bin/env python3
"""Follows files of a bucket that only ever grow, as event files do: a copy of each, to which new bytes are appended.

TensorBoard keeps a file open and reads on where it stopped, so a copy is never written again: a file that was replaced gets a
new name beside it. Whether it was is told by its last bytes, which are fetched once more with what follows them: they hold
checksums and times, so in another file they are others. The copies themselves are all that is remembered.

rclone does what is S3, in a process of its own that has the keys: it lists (only names that match, all levels in one request for
a thousand files) and gives ranges of bytes, by a Unix socket. This is also the program `follow` of docker/rclone, so only the
standard library is imported here:

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
# How often it looks, at the soonest; and listing a million checkpoints is not all that a server does: a tenth of the time.
EVERY, SHARE, LONGEST = 5.0, 10, 120.0
OVERLAP = 4096
CHUNK = 4 * 1024 * 1024
# Of one folder, so that a disk is not filled by what nobody can look at any more.
MAX_FILES, MAX_BYTES = 5000, 8 * 1024**3
MAX_LIST = 64 * 1024 * 1024
ANSWER_SECONDS = 120
AGAIN = re.compile(r"\.again-(\d{1,9})\Z")


class Trouble(Exception):
    """It cannot be followed now. The text is rclone's or the machine's word."""


@dataclass(frozen=True)
class Listed:
    """A file of the bucket; `stamp` is another one when it was stored again."""

    path: str
    size: int
    stamp: str


class Remote(Protocol):
    """Both raise Trouble."""

    def list(self) -> Sequence[Listed]:
        """The files to follow, none where there is no such folder (yet)."""

    def read(self, path: str, start: int, length: int) -> bytes:
        """At most so many bytes from `start`, fewer at the end, none behind it or of a file that is gone."""


@dataclass
class Copy:
    """The copy of one file. `seen` is what was listed when it was the same, `number` counts the files that had its path."""

    path: str
    number: int = 1
    length: int = 0
    seen: Listed | None = None

    @property
    def name(self) -> str:
        return self.path if self.number == 1 else f"{self.path}.again-{self.number}"


class Follower:
    """One folder of a bucket, and its copy in `folder`."""

    def __init__(
        self, remote: Remote, folder: str, *, overlap: int = OVERLAP, chunk: int = CHUNK, most: int = MAX_BYTES
    ) -> None:
        self.remote, self.folder = remote, folder
        self.overlap, self.chunk, self.most = overlap, chunk, most
        self.problem = ""
        self.copies = {copy.path: copy for copy in self._found()}
        self.held = sum(copy.length for copy in self.copies.values())

    def round(self) -> bool:
        """Looks once, and fetches a piece of each file with something new. Whether there is more to be had at once. Raises
        Trouble; `problem` is what stands in the way of single files."""
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
            # It is another one since it was listed; the next list says which.
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
        """What was there is no more: who has it open keeps it, and finds the other one beside it."""
        if copy.length:
            os.unlink(os.path.join(self.folder, copy.name))
            self.held -= copy.length
        copy.number, copy.length, copy.seen = copy.number + 1, 0, None

    def _found(self) -> list[Copy]:
        """What a process before this one has left."""
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
    """Whether a file of this name can be kept under it, and is none that was removed (TRASH of datastores/listing.py)."""
    return not AGAIN.search(path) and "\0" not in path and not {"", ".", "..", ".portal-trash"} & set(path.split("/"))


class Rclone:
    """rclone as a server of one Unix socket; `folder` is where that may lie. `env` holds the remotes with their keys."""

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
        """Status and what it answers."""
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
    """A folder of a bucket, `remote` as rclone writes it: name:bucket/folder."""

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
    """Follows `pairs` of a remote and its copy's folder until it is killed or rclone ends. `folder` is for its own use. `tell`
    hears whenever a round is over what stands in the way, one sentence or "" a pair, and whether all were reached; `before` is
    called in rclone's process."""
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
    """What stands in the way of each, whether all were reached, and whether there is more to be had at once."""
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
        if reached:  # the container's startup probe looks for it
            open(os.path.join(os.environ["HOME"], "reached"), "w").close()
        if problems != told:
            told = problems
            print(*filter(None, problems), sep="\n", file=sys.stderr, flush=True)

    # As process 1 of a container it would not notice it otherwise.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    pairs = list(zip(words[::2], words[1::2], strict=True))
    run(pairs, program="rclone", folder=os.environ["HOME"], env=os.environ, every=every, tell=tell)


if __name__ == "__main__":
    main(sys.argv[1:])
