#!/usr/bin/env python3
"""Stores what a task of a pod wrote: the program `store` of docker/rclone.

    store --every SECONDS --within SECONDS REMOTE PATH [REMOTE PATH ...]

Copies what this task changed in paths to folders of buckets, until SIGTERM, which comes when the task has ended; then all that is
left, with as many seconds as `--within` says for a store that is away. It ends with 0 when everything is stored that can be, and
says what cannot (outputs.py) where the kubelet looks for it.

What was fetched and left alone is not stored: other tasks of the run store into the same folders, and theirs is newer. Whether
the task changed a file is told by its ctime, which no program can set back, against that of the file `fetched` that `fetch` made.
Where the task started lies a copy of code, whose files have a new ctime, too, and their old mtime: these are left alone.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from clusters.clouds.drivers import outputs

FLAGS = (
    "--config=", "--use-json-log", "--log-level=INFO", "--stats=0", "--retries=1", "--low-level-retries=3", "--contimeout=10s",
    "--timeout=60s", "--buffer-size=4M", "--s3-no-check-bucket",
)  # fmt: skip
DIRECTORY_NOT_FOUND, FILE_NOT_FOUND = 3, 4
# Of the last store. One that is away may come back: what the task wrote is lost otherwise.
TRIES, AGAIN_SECONDS = 5, 5.0
# What one try may take with a server that does not answer: the last one has to say why before the kubelet ends this program.
TRY_SECONDS = 3 * 10.0
AWAY = re.compile(
    "connection refused|connection reset|no such host|no route to host|network is unreachable|i/o timeout|deadline exceeded|EOF"
    "|StatusCode: 5..|SlowDown|InternalError"
)


class Failed(Exception):
    """The store is at fault. The text is rclone's."""


def copy(remote: str, path: str, names: set[str], copied: set[str]) -> dict[str, str]:
    """See `outputs.Output.store`. Raises Failed."""
    failed, errors = dict[str, str](), list[str]()
    with tempfile.TemporaryFile() as lines:
        lines.writelines(os.fsencode(name) + b"\n" for name in names)
        lines.seek(0)
        argv = ["rclone", "copy", path, remote, *FLAGS, *outputs.COPY]
        with subprocess.Popen(argv, stdin=lines, stderr=subprocess.PIPE) as program:
            assert program.stderr is not None
            for line in program.stderr:
                outputs.hear(_entry(line), copied, failed, errors)
    own, odd, others = outputs.blame(failed)
    if others or (program.returncode and not failed):
        raise Failed("\n".join([f"{name}: {text}" for name, text in others.items()] or errors or ["rclone failed"]))
    if odd:
        _ask(remote)
    return own | odd | outputs.unheard(names - copied - failed.keys(), path)


def _entry(line: bytes) -> Mapping[str, object]:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"level": "error", "msg": line.decode(errors="replace").strip()}


def _ask(remote: str) -> None:
    """Asks the store for a plain name. Raises Failed unless it says whether that is there."""
    argv = ["rclone", "lsjson", "--stat", f"{remote.rstrip('/')}/is-it-there", *FLAGS]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode not in (0, DIRECTORY_NOT_FOUND, FILE_NOT_FOUND):
        raise Failed(done.stderr)


def is_tried_again(wrong: str, tries: int, seconds_left: float) -> bool:
    """After so many tries, of which the last one said what is wrong."""
    return tries < TRIES or (bool(AWAY.search(wrong)) and seconds_left > AGAIN_SECONDS + TRY_SECONDS)


def main(argv: Sequence[str]) -> int:
    every, within, home = float(argv[2]), float(argv[4]), Path(os.environ["HOME"])
    pairs = list(zip(argv[5::2], argv[6::2], strict=True))
    known = [outputs.Output({}) for _ in pairs]
    ending = threading.Event()
    # As process 1 of a container it would not notice it otherwise.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    # Told before it listened (see where its container is described).
    if (home / "ended").exists():
        ending.set()
    # Without it everything is the task's.
    fetched = home / "fetched"
    since = fetched.stat().st_mtime_ns if fetched.exists() else -1

    def everything() -> str:
        """What went wrong, "" for nothing."""
        wrong = []
        for (remote, path), output in zip(pairs, known, strict=True):
            prefix = remote.partition("/")[2].strip("/")
            try:
                look = partial(outputs.look_at_work, since=since) if path == outputs.WORK else outputs.look
                output.store(look(path, mount=path, prefix=prefix), partial(copy, remote, path), since)
            except (Failed, OSError) as error:
                print(error, file=sys.stderr, flush=True)
                wrong.append(str(error))
        return "\n".join(wrong)

    while not ending.wait(every):
        # The readiness probe of this container looks for `failing`: it is how the portal hears of it.
        if everything():
            (home / "failing").touch()
        else:
            (home / "failing").unlink(missing_ok=True)
    end, tries = time.monotonic() + within, 1
    while (wrong := everything()) and is_tried_again(wrong, tries, end - time.monotonic()):
        threading.Event().wait(AGAIN_SECONDS)
        tries += 1
    left: dict[str, str] = {}
    for output in known:
        left |= output.left_out
    _say(wrong or outputs.sentence(left))
    return 1 if wrong else 0


def _say(text: str) -> None:
    try:
        Path(os.environ.get("SAYS", "/dev/termination-log")).write_text(text[-4000:], errors="replace")
    except OSError as error:
        # A path that the kubelet does not give costs only this.
        print(error, text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
