"""Decides which files of a run's output a bucket can store, and why others are left out.

A bucket stores files under text names; a folder may contain anything. `look` walks the folder once and decides by names, modes
and links only. Links are resolved in memory among the files of the walk, so none is followed on disk and none leads outside.
Some refusals of the store only show when rclone tries: `blame` separates errors of a file from errors of the store.

Both clouds use this: beside a task of this machine (local/data/storage.py) and in pods (store.py). It imports only small modules
of the standard library.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat

from datastores import trees

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

# Maximum bytes of an S3 key.
LONGEST_KEY = 1024
# Maximum symbolic links in one path, as in Linux.
HOPS = 40
# Maximum files stored again because links to folders lead to them.
MOST_BY_LINKS = 10_000
# How many omitted files are named, and characters per name.
NAMED, NAME_LENGTH = 20, 80
# rclone's options to copy a list of files. Links are followed, because only links that `look` resolved are listed. A file that
# changes during the copy is copied again in the next round.
COPY = (
    "--local-no-check-updated", "--copy-links", "--no-check-dest", "--no-traverse", "--no-update-modtime",
    "--no-update-dir-modtime", "--files-from-raw=-",
)  # fmt: skip
# The folder where programs start and write beside themselves, and its place below the output.
WORK, WORK_FOLDER = "/elearn/work", "work"
_AGAIN = {"__pycache__", ".git"}
# Links by which W&B leads people on this machine to its newest run and logs, and a folder that it makes and leaves empty.
_OF_WANDB = re.compile(
    r"(?:^|/)wandb/(?:latest-run|debug(?:-internal)?\.log|(?:offline-)?run-[^/]+/(?:logs/debug-core\.log|tmp/code))\Z"
)
# Names that every store accepts: an error of such a file is not about its name.
_PLAIN = re.compile(r"[A-Za-z0-9 ._/=+@-]{1,500}\Z")
_GONE = re.compile(r"no such file|object not found|not a directory|is a directory not a file")
_CLOSED = re.compile(r"permission denied|operation not permitted")
_CODE = re.compile(r"(?:.*api error|StatusCode:) (\w+)", re.DOTALL)


class Look:
    """`files`: path → size, mtime and ctime in ns, which change with the file. `left`: path → why it cannot be stored."""

    def __init__(self) -> None:
        self.files: dict[str, list[int]] = {}
        self.left: dict[str, str] = {}


def look(folder: str, *, mount: str, prefix: str) -> Look:
    """Walks a folder. `mount`: the task's path of the folder. `prefix`: of its keys in the bucket. Raises OSError if the folder
    itself cannot be opened."""
    found, links, folders, full = Look(), dict[str, tuple[str, int]](), dict[str, str](), {""}
    top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for each in trees.walk(top):
            if all(_is_open(level.info) for level in each.way[1:]):
                full.add(each.path.rpartition("/")[0])
                if not stat.S_ISREG(each.info.st_mode) and _OF_WANDB.search(each.path):
                    continue
                _sort(each, found, folders, links)
    finally:
        os.close(top)
    for path, closed in folders.items():
        if closed:
            found.left[path + "/"] = closed
        elif path not in full and not _is_of_tensorflow(path, found.files):
            found.left[path + "/"] = "the folder is empty, and a bucket keeps files only"
    _follow(found, folders, links, mount)
    for path in list(found.files):
        if why := why_not(path, prefix):
            found.left[path] = why
            del found.files[path]
    return found


def _sort(each: trees.Found, found: Look, folders: dict[str, str], links: dict[str, tuple[str, int]]) -> None:
    path, info = each.path, each.info
    if each.is_folder:
        folders[path] = "" if _is_open(info) else _closed(info.st_mode)
    elif stat.S_ISLNK(info.st_mode):
        # If it was deleted or replaced meanwhile, the next walk sees the new state.
        with contextlib.suppress(OSError):
            links[path] = os.readlink(each.name, dir_fd=each.folder), info.st_ctime_ns
    elif not stat.S_ISREG(info.st_mode):
        found.left[path] = "it is no file, but a socket, a pipe or a device"
    elif not info.st_mode & stat.S_IRUSR:
        found.left[path] = _closed(info.st_mode)
    else:
        found.files[path] = [info.st_size, info.st_mtime_ns, info.st_ctime_ns]


def look_at_work(folder: str, *, mount: str, prefix: str, since: int) -> Look:
    """Returns the files that a program itself wrote where it started, among copies of the image's files or the code: those
    modified after `since` (ns). Skips what can be recreated: compiled modules, repositories, virtual environments. Raises
    OSError."""
    found = look(folder, mount=mount, prefix=prefix)
    made = tuple(name.removesuffix("pyvenv.cfg") for name in found.files if name.endswith("/pyvenv.cfg"))

    def is_own(name: str, written: int) -> bool:
        return written > since and not _AGAIN & {*name.split("/")} and not name.startswith(made)

    found.files = {name: mark for name, mark in found.files.items() if is_own(name, mark[1])}
    left, found.left = found.left, {}
    for name, why in left.items():
        with contextlib.suppress(OSError):
            info = os.lstat(os.path.join(folder, name))
            if not stat.S_ISDIR(info.st_mode) and is_own(name, info.st_mtime_ns):
                found.left[name] = why
    return found


class Output:
    """State of one folder that is stored repeatedly. `known`: marks of stored files. `refused`: files that rclone or the store
    refused, with their marks and the reason. `left`: what `look` left out, with the reason."""

    def __init__(self, known: dict[str, list[int]]) -> None:
        self.known = known
        self.refused: dict[str, tuple[list[int], str]] = {}
        self.left: dict[str, str] = {}

    def store(self, found: Look, copy: Callable[[set[str], set[str]], dict[str, str]], since: int = -1) -> bool:
        """Stores new and changed files with ctime after `since` (ns) by `copy`. Returns whether there were any. `copy` gets the
        names, adds copied ones to the set, and returns the reasons for single failures; its exceptions propagate."""
        self.left = found.left
        self.refused = {name: each for name, each in self.refused.items() if found.files.get(name) == each[0]}
        changed = {
            name
            for name, mark in found.files.items()
            if mark[2] > since and self.known.get(name) != mark and name not in self.refused
        }
        if not changed:
            return False
        copied: set[str] = set()
        try:
            for name, why in copy(changed, copied).items():
                if why:
                    self.refused[name] = found.files[name], why
        finally:
            self.known.update({name: found.files[name] for name in changed & copied})
        return True

    @property
    def left_out(self) -> dict[str, str]:
        return self.left | {name: why for name, (_, why) in self.refused.items()}


def why_not(path: str, prefix: str) -> str:
    """Returns why no file of this name can be stored, or ""."""
    try:
        size = len((f"{prefix}/{path}" if prefix else path).encode())
    except UnicodeEncodeError:
        return "its name is not in UTF-8"
    if any(character < " " or character == "\x7f" for character in path):
        return "its name has a line break or another control character"
    return f"its key would have {size:,} bytes, and S3 takes {LONGEST_KEY:,}" if size > LONGEST_KEY else ""


def resolve(path: str, mount: str, links: Mapping[str, tuple[str, int]]) -> str | None:
    """Returns where the link at `path` leads, relative to the folder ("" for itself); None if outside or circular."""
    at, left = path.split("/")[:-1], [path.rpartition("/")[2]]
    for _ in range(HOPS):
        while left:
            part = left.pop()
            if part == ".." and not at:
                return None
            if part == "..":
                at.pop()
                continue
            at.append(part)
            if "/".join(at) in links:
                break
        else:
            return "/".join(at)
        text = links["/".join(at)][0]
        at.pop()
        if text.startswith("/"):
            if not (text + "/").startswith(mount + "/"):
                return None
            text, at = text[len(mount) :], []
        left += [part for part in reversed(text.split("/")) if part not in ("", ".")]
    return None


def _follow(found: Look, folders: Mapping[str, str], links: Mapping[str, tuple[str, int]], mount: str) -> None:
    """Adds the targets of links. A link to a folder adds the files in it, including those that links there lead to, but no
    further folders. This bounds the number of files and avoids loops."""
    to_folders = {}
    for path, (_, changed) in links.items():
        target = resolve(path, mount, links)
        if target is None:
            found.left[path] = "the link leads out of the output"
        elif target in found.files:
            size, written, its = found.files[target]
            found.files[path] = [size, written, max(its, changed)]
        elif target in folders or target == "":
            to_folders[path] = target
        else:
            found.left[path] = "the link leads to nothing that can be stored"
    names, count = sorted(found.files) if to_folders else [], 0
    for path, target in to_folders.items():
        inside = target + "/" if target else ""
        if (path + "/").startswith(inside):
            found.left[path] = "the link leads to a folder that it lies in"
            continue
        behind = [name for name in names if name.startswith(inside)]
        count += len(behind)
        if count > MOST_BY_LINKS:
            found.left[path] = f"links lead to more than {MOST_BY_LINKS:,} files, and this one's are not stored again"
            continue
        for name in behind:
            size, written, its = found.files[name]
            found.files[path + "/" + name[len(inside) :]] = [size, written, max(its, links[path][1])]


def hear(entry: Mapping[str, Any], copied: set[str], failed: dict[str, str], errors: list[str]) -> None:
    """Sorts a line of rclone's JSON log into copied files, failed files with reasons, and other errors."""
    name, text = entry.get("object"), str(entry.get("msg", ""))
    if name and "Copied (" in text:
        copied.add(name)
    elif entry.get("level") in ("error", "critical"):
        if name:
            failed[name] = text
        else:
            errors.append(text)


def blame(errors: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Splits rclone's errors by file into three: errors of the file itself (file → why it is left out, "" if it is gone), errors
    that may be due to its name, and errors of the store."""
    own, odd, others = dict[str, str](), dict[str, str](), dict[str, str]()
    for name, text in errors.items():
        if _CLOSED.search(text):
            own[name] = "nobody may read it"
        elif _GONE.search(text):
            own[name] = ""
        elif _PLAIN.match(name):
            others[name] = text
        else:
            code = _CODE.search(text)
            odd[name] = "the store refuses its name" + (f": {code[1]}" if code else "")
    return own, odd, others


def unheard(names: Iterable[str], folder: str) -> dict[str, str]:
    """Returns the existing ones among files that rclone neither copied nor reported: it interprets their names differently."""
    return {
        name: "rclone reads its name as another one" for name in names if os.path.lexists(os.path.join(folder, name))
    }


def sentence(left: Mapping[str, str]) -> str:
    """Returns a sentence on what was left out and why, or ""."""
    if not left:
        return ""
    count = len(left)
    named = "; ".join(f"{shown(name)} ({why})" for name, why in sorted(left.items())[:NAMED])
    what = "1 thing in the output was" if count == 1 else f"{count:,} things in the output were"
    rest = f"; and {count - NAMED:,} more" if count > NAMED else ""
    return f"{what} not stored: {named}{rest}."


def shown(name: str) -> str:
    """Returns a name on one line; long names are cut in the middle."""
    text = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in name)
    return text if len(text) <= NAME_LENGTH else f"{text[: NAME_LENGTH // 2]}…{text[-NAME_LENGTH // 2 :]}"


def _is_open(info: os.stat_result) -> bool:
    return info.st_mode & (stat.S_IRUSR | stat.S_IXUSR) == stat.S_IRUSR | stat.S_IXUSR


def _closed(mode: int) -> str:
    """Decides by the mode alone, so that both clouds agree: a storing process that is root could read such files."""
    return f"its mode {stat.S_IMODE(mode):03o} lets its owner not read it"


def _is_of_tensorflow(path: str, files: Mapping[str, Any]) -> bool:
    """True for the assets folder of a SavedModel, which is usually empty and not needed."""
    above, _, name = path.rpartition("/")
    return name == "assets" and (f"{above}/saved_model.pb" if above else "saved_model.pb") in files
