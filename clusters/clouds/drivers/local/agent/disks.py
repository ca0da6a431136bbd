"""File systems with a size limit: a sparse file formatted with ext4 and mounted where tasks write.

Each volume has one, and each appcode has one for everything else that its runs write (outputs before they are stored, /tmp), so
no tenant can fill the disk of the portal's database or of other tenants. A sparse file only occupies what it contains. Only root
can mount; without root or loop devices these are plain folders without a limit, and the machine's note says so.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import uuid
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

NOT_HELD = "What tasks write is not limited on this machine, and volumes have no size."
# Minimum bytes: ext4 needs some MB for itself.
LEAST = 16 << 20
JOURNAL_MB = 32
_PROGRAMS = ("mkfs.ext4", "e2fsck", "resize2fs", "losetup", "mount", "umount")
_UNITS = {"Mi": 20, "Gi": 30, "Ti": 40}
# Folders of system programs, independent of PATH.
_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"


def why_not(folder: Path) -> str:
    """Returns why volumes below `folder` cannot have a size limit here, or ""."""
    if os.geteuid() != 0:
        return "only root can mount them"
    if missing := [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]:
        return f"{', '.join(missing)} of e2fsprogs and mount are missing"
    image, at = folder / f"probe-{uuid.uuid4().hex}.ext4", folder / "probe-disk"
    try:
        attach(image, at, LEAST, owner=0)
        return ""
    except OSError as error:
        return str(error)
    finally:
        with suppress(OSError):
            detach(at)
            at.rmdir()
        image.unlink(missing_ok=True)


def attach(image: Path, at: Path, size: int, *, owner: int, spare: int = 0) -> None:
    """Mounts the file system in the file `image` at the folder `at`, with `size` bytes, for the user `owner`.

    Creates a missing file, and grows the file system to `size`; never shrinks it. `spare`: per cent of a new file system
    reserved for root, so that the agent can clean up a full one. Idempotent. Raises OSError.
    """
    size = max(size, LEAST)
    is_new = not image.exists()
    if is_new:
        _make(image, size, spare)
    at.mkdir(parents=True, exist_ok=True)
    before = image.stat().st_size
    if before < size and os.path.ismount(at):
        with suppress(OSError):  # in use by a task
            _run("umount", str(at))
    if not os.path.ismount(at):
        if not is_new:  # checks it, because the machine may have lost power
            _run("e2fsck", "-fp" if before < size else "-p", str(image), fine=(0, 1, 2))
        if before < size:
            os.truncate(image, size)
            _run("resize2fs", str(image))
        # noinit_itable: a new sparse file reads as zeros, so the kernel need not write them in the background.
        _run("mount", "-o", "loop,nosuid,nodev,noatime,discard,noinit_itable", str(image), str(at))
    elif before < size:
        _grow_in_use(image, at, before, size)
    if is_new:
        (at / "lost+found").rmdir()  # e2fsck recreates it when needed
        at.chmod(0o700)
    if at.stat().st_uid != owner:
        os.chown(at, owner, owner)


def _grow_in_use(image: Path, at: Path, before: int, size: int) -> None:
    """Grows a mounted file system, for which the kernel requires CAP_SYS_RESOURCE. Without it the next run gets the new size."""
    device = _device(at)
    os.truncate(image, size)
    _run("losetup", "--set-capacity", device)
    try:
        _run("resize2fs", device)
    except OSError as error:
        log.warning("The volume %s grows when no run has it: %s", image.stem, error.strerror)
        os.truncate(image, before)
        _run("losetup", "--set-capacity", device)


def detach(at: Path) -> None:
    """Unmounts `at`; a task that uses it keeps it until it ends. Raises OSError."""
    if os.path.ismount(at):
        _run("umount", "--lazy", str(at))


def size_of(quantity: str) -> int:
    """Returns the bytes of a volume's size such as 20Gi."""
    return int(quantity[:-2]) << _UNITS[quantity[-2:]]


def _make(image: Path, size: int, spare: int) -> None:
    partial = image.with_suffix(".new")
    with partial.open("wb") as file:
        file.truncate(size)
    # By default a large file system's journal takes 256 MB or more, which mkfs would write.
    journal = ("-J", f"size={JOURNAL_MB}") if size >= 1 << 30 else ()
    options = ("-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard")
    _run("mkfs.ext4", "-q", "-F", "-m", str(spare), *journal, *options, str(partial))
    partial.rename(image)


def _device(at: Path) -> str:
    """Returns the loop device mounted there."""
    with open("/proc/self/mountinfo") as file:
        rows = [line.split() for line in file]
    return next(row[row.index("-") + 2] for row in rows if row[4].replace("\\040", " ") == str(at))


def _run(program: str, *arguments: str, fine: tuple[int, ...] = (0,)) -> None:
    done = subprocess.run(
        [program, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={"PATH": _PATH, "LC_ALL": "C"},
    )
    if done.returncode not in fine:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise OSError(0, f"{program}: {said[0] if said else done.returncode}", arguments[-1])
