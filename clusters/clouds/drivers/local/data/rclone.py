"""Copies between a folder and a bucket by the rclone program, in a sandbox that contains only this folder.

It reaches the network through `socks` only. Keys are passed in environment variables only. rclone's JSON log reports copied
files, progress and errors.
"""

from __future__ import annotations

import json
import os
import re
import select
import tempfile

from clusters.clouds.drivers import outputs
from clusters.clouds.drivers.local.network import socks
from clusters.clouds.drivers.local.task import sandbox
from datastores.listing import LSJSON, WITHOUT_TRASH, Listing, listing_of, plain, rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_DATA, _PROGRAM = "/elearn/data", "/elearn/rclone"
_COMMON = (
    "--config=",
    "--use-json-log",
    "--log-level=INFO",
    "--stats=1s",
    "--retries=1",
    "--low-level-retries=3",
    "--contimeout=10s",
    "--timeout=60s",
    "--buffer-size=4M",
    "--s3-no-check-bucket",
)
# Small files are dominated by latency, so many are copied at once; of a large one each of two parts takes 5 MiB of memory.
_MANY = ("--transfers=16", "--s3-upload-concurrency=2")
_DIRECTORY_NOT_FOUND, _FILE_NOT_FOUND, _TOO_MUCH = 3, 4, 8
# These differ with every attempt, and would make an unchanged failure look like news.
_BOTH = re.compile(r"not a directory|is a directory|file exists")
_IDS = re.compile(r"\b(RequestID|HostID): [^,]*, |exceeded maximum number of attempts, \d+, ")


class Failed(Exception):
    """A copy failed; the text is a sentence for people."""


class Absent(Failed):
    """The store answered, but there is no such folder, or its objects cannot be represented as files."""


def fetch(
    spec: dict[str, Any],
    mount: dict[str, Any],
    folder: str,
    wake: int,
    progress: Callable[[int, int], None],
    check: Callable[[], None],
) -> None:
    """Copies the bucket's folder into `mount["folder"]`. Calls `check` when `wake` is readable; an exception from it aborts."""
    # For input, "sync" deletes what an earlier attempt left of another listing, which would be divided with the rest.
    how = "sync" if mount["is_input"] else "copy"
    argv = [how, remote(mount), _DATA, *_COMMON, *WITHOUT_TRASH, "--local-no-set-modtime=false"]
    if not mount["shown_gib"]:
        argv.append("--inplace")
    else:  # and leaves no partial file
        argv += [f"--max-transfer={int(mount['shown_gib'] * 2**30)}B", "--cutoff-mode=hard"]
    code, errors = _run(spec, mount, folder, argv, b"", lambda entry: _progress(entry, progress), wake, check)
    if code == _DIRECTORY_NOT_FOUND:
        raise Failed(_no_bucket(mount))
    if code == _TOO_MUCH and mount["shown_gib"]:
        # A note where people look. Only the agent writes there.
        with open(os.path.join(mount["folder"], "NOT-ALL-IS-COPIED.txt"), "w") as file:
            file.write(f"There are more than {mount['shown_gib']:g} GiB in {where(mount)}; the rest is not copied.\n")
        return
    if code != 0 and (name := not_files(errors)):
        raise Absent(f"What lies in {where(mount)} cannot be laid out as files: {name}.")
    if code != 0:
        raise Failed(explain(mount, errors))
    if mount["read_only"] and mount["prefix"] and not mount["shown_gib"] and not os.listdir(mount["folder"]):
        raise Absent(f"There is no folder {mount['prefix']} in bucket {mount['bucket']}.")


def listing(spec: dict[str, Any], mount: dict[str, Any], folder: str, wake: int, check: Callable[[], None]) -> Listing:
    """Returns the current listing of the bucket's folder. `wake` and `check`: see `fetch`. Raises Failed."""
    said: list[str] = []

    def hear(entry: dict[str, Any]) -> None:
        """Collects notices: rclone reports the reason why nothing could be listed as one."""
        if entry.get("level") == "notice":
            said.append(str(entry.get("msg", "")))

    with tempfile.TemporaryFile(dir=folder) as file:
        argv = ["lsjson", remote(mount), *LSJSON, *_COMMON]
        code, errors = _run(spec, mount, folder, argv, b"", hear, wake, check, file.fileno())
        if code == _DIRECTORY_NOT_FOUND:
            raise Failed(_no_bucket(mount))
        if code != 0:
            raise Failed(explain(mount, errors + said))
        file.seek(0)
        return listing_of((plain(name), size, modified) for name, size, modified in rows(file))


def store(
    spec: dict[str, Any], mount: dict[str, Any], folder: str, names: set[str], copied: set[str]
) -> dict[str, str]:
    """Copies the files `names` into the bucket; adds copied ones to `copied`. Returns why single files were left out, "" for
    those that are gone. Raises Failed."""
    failed: dict[str, str] = {}
    argv = ["copy", mount["mount_path"], remote(mount), *_COMMON, *outputs.COPY, *_MANY]
    lines = b"".join(os.fsencode(name) + b"\n" for name in names)
    code, errors = _run(spec, mount, folder, argv, lines, lambda entry: outputs.hear(entry, copied, failed, []))
    own, odd, others = outputs.blame(failed)
    if others or (code and not failed):
        raise Failed(explain(mount, [f"{name}: {text}" for name, text in others.items()] or errors))
    if odd:
        answers(spec, mount, folder)
    return own | odd | outputs.unheard(names - copied - failed.keys(), mount["folder"])


def answers(spec: dict[str, Any], mount: dict[str, Any], folder: str) -> None:
    """Checks the store with a harmless name. Raises Failed unless it answers whether the file exists."""
    said: list[str] = []

    def hear(entry: dict[str, Any]) -> None:
        said.append(str(entry.get("msg", "")))

    argv = ["lsjson", "--stat", remote(mount).rstrip("/") + "/is-it-there", *_COMMON]
    code, errors = _run(spec, mount, folder, argv, b"", hear)
    if code not in (0, _DIRECTORY_NOT_FOUND, _FILE_NOT_FOUND):
        raise Failed(explain(mount, errors + said))


def remote(mount: dict[str, Any]) -> str:
    # Without the trailing slash rclone first checks for an object of that name, and takes a dead server for one.
    path = f"{mount['bucket']}/{mount['prefix']}/" if mount["prefix"] else mount["bucket"]
    return f"store:{path}"


def variables(mount: dict[str, Any], name: str) -> dict[str, str]:
    """Returns the variables that define the bucket's server, with its keys, as rclone's remote `name`."""
    values = {
        "TYPE": "s3",
        "PROVIDER": "Other" if mount["endpoint"] else "AWS",
        "ACCESS_KEY_ID": mount["access_key"],
        "SECRET_ACCESS_KEY": mount["secret_key"],
        "REGION": mount["region"],
        "ENDPOINT": mount["endpoint"],
    }
    return {f"RCLONE_CONFIG_{name.upper()}_{key}": value for key, value in values.items()}


def where(mount: dict[str, Any]) -> str:
    """Describes folder and bucket for people."""
    folder = f"folder {mount['prefix']} of " if mount["prefix"] else ""
    return f"{folder}bucket {mount['bucket']} at {mount['endpoint'] or 'AWS'}"


def _no_bucket(mount: dict[str, Any]) -> str:
    return f"There is no bucket {mount['bucket']} at {mount['endpoint'] or 'AWS'}."


def not_files(errors: list[str]) -> str:
    """Returns why an object's name cannot be a file name, or "" if that is not the problem."""
    for error in errors:
        if _BOTH.search(error):
            return f"{outputs.shown(error.partition(': ')[0])} needs a file and a folder of the same name"
        if "file name too long" in error:
            return f"{outputs.shown(error.partition(': ')[0])} is too long for the name of a file"
    return ""


def explain(mount: dict[str, Any], errors: list[str]) -> str:
    """Returns rclone's errors as one sentence."""
    text = " ".join(errors)
    where = mount["endpoint"] or "AWS"
    known = (
        (("NoSuchBucket", "directory not found"), _no_bucket(mount)),
        (("QuotaExceeded",), f"Bucket {mount['bucket']} at {where} is full."),
        (
            (
                "InvalidAccessKeyId",
                "SignatureDoesNotMatch",
                "AccessDenied",
                "StatusCode: 403",
                "StatusCode: 401",
                "Forbidden",
            ),
            f"{where} refused the access key of the datastore for bucket {mount['bucket']}.",
        ),
        (
            ("not allowed by ruleset",),
            f"{where} leads to an address that is closed; an administrator can open private ones (PORTAL_OPEN_NETWORKS).",
        ),
        (
            ("connection refused", "no such host", "i/o timeout", "no route to host", "host unreachable"),
            f"{where} cannot be reached.",
        ),
        (("no space left",), "The disk of this machine is full."),
    )
    for needles, sentence in known:
        if any(needle in text for needle in needles):
            return sentence
    named = next((error for error in errors if not error.startswith("Attempt ")), "rclone failed without a word")
    return _IDS.sub("", named)[:300].rstrip(". \n") + "."


def _progress(entry: dict[str, Any], progress: Callable[[int, int], None]) -> None:
    stats = entry.get("stats")
    if isinstance(stats, dict):
        progress(int(stats.get("bytes", 0)), int(stats.get("totalBytes", 0)))


def _run(
    spec: dict[str, Any],
    mount: dict[str, Any],
    folder: str,
    argv: list[str],
    lines: bytes,
    hear: Callable[[dict[str, Any]], None],
    wake: int = -1,
    check: Callable[[], None] = lambda: None,
    out: int = -1,
) -> tuple[int, list[str]]:
    """Runs rclone with `lines` as input and the file `out` for output. Returns exit code and error messages."""
    with socks.proxy(spec["open"], spec["uid"]) as proxy:
        feed = os.memfd_create("names", os.MFD_CLOEXEC)
        with open(os.dup(feed), "wb") as file:
            file.write(lines)
        os.lseek(feed, 0, os.SEEK_SET)
        said, says = os.pipe2(os.O_CLOEXEC)
        child = os.fork()
        if child == 0:
            try:
                _become(spec, mount, folder, argv, (feed, out, says), proxy)
            except Exception as error:  # noqa: BLE001  whatever it is, it must be told, and this process may not go on
                os.write(says, json.dumps({"level": "error", "msg": str(error)}).encode() + b"\n")
            finally:
                os._exit(1)
        os.close(says)
        os.close(feed)
        errors: list[str] = []
        try:
            for entry in _entries(said, wake, check):
                hear(entry)
                if entry.get("level") in ("error", "critical"):
                    name = f"{entry['object']}: " if entry.get("object") else ""
                    errors.append(name + str(entry.get("msg", "")))
        except BaseException:
            os.kill(child, 9)
            raise
        finally:
            os.close(said)
            _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status), errors


def _entries(said: int, wake: int, check: Callable[[], None]) -> Any:
    rest = b""
    poll = select.poll()
    poll.register(said, select.POLLIN)
    if wake >= 0:
        poll.register(wake, select.POLLIN)
    while True:
        for handle, _ in poll.poll():
            data = os.read(handle, 1 << 16)
            if handle == wake:
                check()
                continue
            *full, rest = (rest + data).split(b"\n")
            for line in full:
                try:
                    yield json.loads(line)
                except ValueError:
                    yield {"level": "error", "msg": line.decode(errors="replace")}
            if not data:
                return


def _become(
    spec: dict[str, Any], mount: dict[str, Any], folder: str, argv: list[str], files: tuple[int, int, int], proxy: str
) -> None:
    """`files`: descriptors of stdin, stdout (below 0: none) and stderr."""
    feed, out, says = files
    os.dup2(feed, 0)
    os.dup2(out if out >= 0 else os.open("/dev/null", os.O_WRONLY), 1)
    os.dup2(says, 2)
    sandbox.unshare()
    writing = argv[0] in ("copy", "sync") and argv[2] == _DATA
    # Output appears under the task's own path, so that absolute links lead to the same files.
    target = argv[1] if argv[0] == "copy" and not writing else _DATA
    binds: list[sandbox.Bind] = [
        {"source": spec["rclone"], "target": _PROGRAM, "read_only": True},
        {"source": mount["folder"], "target": target, "read_only": not writing},
    ]
    sandbox.build(os.path.join(folder, "root"), binds, tmp=None, proc=False)
    sandbox.drop_privileges(spec["uid"])
    sandbox.die_with_parent()
    env = {
        "HOME": "/tmp",  # noqa: S108  read-only and empty
        "GOMEMLIMIT": "256MiB",
        "RCLONE_HTTP_PROXY": proxy,
        **variables(mount, "store"),
    }
    os.execve(_PROGRAM, ["rclone", *argv], env)  # noqa: S606  no shell is the point
