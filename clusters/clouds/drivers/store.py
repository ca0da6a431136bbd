#!/usr/bin/env python3
"""Stores what a task of a pod wrote: the program `store` of docker/rclone.

    store --every SECONDS --within SECONDS REMOTE PATH [REMOTE PATH ...]

Copies files that this task changed in PATH to folders of buckets until SIGTERM, which it gets when the task has ended. Then it
stores the rest, and retries a store that is down for `--within` seconds. It exits with 0 when everything that can be stored is,
and writes what cannot (outputs.py) to the termination log, which the kubelet reads.

Unchanged fetched files are not stored: other tasks of the run store into the same folders, and theirs are newer. A file counts
as changed if its ctime, which no program can set back, is later than the file `fetched` that `fetch` made. The working folder
has a copy of the code, with new ctimes but old mtimes: those files are skipped.
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
# Retries of the final store. Longer for a store that is down, because the task's output would be lost otherwise.
TRIES, AGAIN_SECONDS = 5, 5.0
# Maximum seconds of one try with a silent server: the last try must report before the kubelet kills this program.
TRY_SECONDS = 3 * 10.0
AWAY = re.compile(
    "connection refused|connection reset|no such host|no route to host|network is unreachable|i/o timeout|deadline exceeded|EOF"
    "|StatusCode: 5..|SlowDown|InternalError"
)


class Failed(Exception):
    """The store failed. The text is rclone's."""


def copy(remote: str, path: str, names: set[str], copied: set[str]) -> dict[str, str]:
    """Implements `copy` of `outputs.Output.store`. Raises Failed."""
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
    """Checks the store with a harmless name. Raises Failed unless it answers whether the file exists."""
    argv = ["rclone", "lsjson", "--stat", f"{remote.rstrip('/')}/is-it-there", *FLAGS]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode not in (0, DIRECTORY_NOT_FOUND, FILE_NOT_FOUND):
        raise Failed(done.stderr)


def is_tried_again(wrong: str, tries: int, seconds_left: float) -> bool:
    """Returns whether to retry after `tries` tries, the last of which failed with `wrong`."""
    return tries < TRIES or (bool(AWAY.search(wrong)) and seconds_left > AGAIN_SECONDS + TRY_SECONDS)


def main(argv: Sequence[str]) -> int:
    every, within, home = float(argv[2]), float(argv[4]), Path(os.environ["HOME"])
    pairs = list(zip(argv[5::2], argv[6::2], strict=True))
    known = [outputs.Output({}) for _ in pairs]
    ending = threading.Event()
    # Process 1 of a container ignores these signals by default.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    # The task may end before the handlers are installed; the manifest's preStop writes this file.
    if (home / "ended").exists():
        ending.set()
    # If nothing was fetched, all files are the task's.
    fetched = home / "fetched"
    since = fetched.stat().st_mtime_ns if fetched.exists() else -1

    def everything() -> str:
        """Returns what went wrong, or ""."""
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
        # The readiness probe of this container checks for `failing`, which is how the portal learns of it.
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
        # Not fatal if the kubelet does not provide the file.
        print(error, text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
