"""File systems with a size: a sparse file of this machine, formatted with ext4 and mounted where tasks write.

Each volume has one, and each appcode one for what its runs write besides (outputs before they are stored, /tmp), so no tenant
takes the disk of the portal's database or of other tenants. A file takes of the disk what is in it. Only root can mount; for
others, and where the kernel has no loop devices, these are plain folders without a limit, and the machine says so.
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
# ext4 needs some MB for itself.
LEAST = 16 << 20
JOURNAL_MB = 32
_PROGRAMS = ("mkfs.ext4", "e2fsck", "resize2fs", "losetup", "mount", "umount")
_UNITS = {"Mi": 20, "Gi": 30, "Ti": 40}
# Where the system's own programs lie, whatever PATH says.
_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"


def why_not(folder: Path) -> str:
    """Why no volume below `folder` can have a size here, or ""."""
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
    """Mounts the file system of `size` bytes that the file `image` holds at the folder `at`, for the user `owner`.

    Makes the file where it is missing, and lets the file system grow to `size`; it never shrinks. `spare` per cent of a new one
    are for root alone, who clears away what others have filled. May be repeated. Raises OSError.
    """
    size = max(size, LEAST)
    is_new = not image.exists()
    if is_new:
        _make(image, size, spare)
    at.mkdir(parents=True, exist_ok=True)
    before = image.stat().st_size
    if before < size and os.path.ismount(at):
        with suppress(OSError):  # a task has it
            _run("umount", str(at))
    if not os.path.ismount(at):
        if not is_new:  # this machine may have lost its power
            _run("e2fsck", "-fp" if before < size else "-p", str(image), fine=(0, 1, 2))
        if before < size:
            os.truncate(image, size)
            _run("resize2fs", str(image))
        # What a sparse file has never held is zero, so nothing has to write zeros over it in the background.
        _run("mount", "-o", "loop,nosuid,nodev,noatime,discard,noinit_itable", str(image), str(at))
    elif before < size:
        _grow_in_use(image, at, before, size)
    if is_new:
        (at / "lost+found").rmdir()  # it is made again when something is found
        at.chmod(0o700)
    if at.stat().st_uid != owner:
        os.chown(at, owner, owner)


def _grow_in_use(image: Path, at: Path, before: int, size: int) -> None:
    """Grows what a task has mounted, for which the kernel wants CAP_SYS_RESOURCE. Without it the next run has the new size."""
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
    """Unmounts `at`. A task that still has it keeps it until it ends. Raises OSError."""
    if os.path.ismount(at):
        _run("umount", "--lazy", str(at))


def size_of(quantity: str) -> int:
    """Bytes of the size of a volume, like 20Gi."""
    return int(quantity[:-2]) << _UNITS[quantity[-2:]]


def _make(image: Path, size: int, spare: int) -> None:
    partial = image.with_suffix(".new")
    with partial.open("wb") as file:
        file.truncate(size)
    # The journal of a large one would take 256 MB or more of this machine, and mkfs would write them.
    journal = ("-J", f"size={JOURNAL_MB}") if size >= 1 << 30 else ()
    options = ("-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard")
    _run("mkfs.ext4", "-q", "-F", "-m", str(spare), *journal, *options, str(partial))
    partial.rename(image)


def _device(at: Path) -> str:
    """The loop device that is mounted there."""
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
