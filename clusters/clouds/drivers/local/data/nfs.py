"""NFS exports: uses an existing mount of the export or of a parent folder; otherwise root mounts it."""

from __future__ import annotations

import os
import subprocess

from clusters.clouds.drivers.local.data.rclone import Failed
from clusters.clouds.drivers.local.network.preload import outgoing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

PORT, MOUNT_SECONDS = 2049, 60


def attach(server: str, path: str, folder: str, opened: Sequence[str]) -> str:
    """Returns a local folder that shows `server:path`. `opened`: PORTAL_OPEN_NETWORKS. Raises Failed."""
    found = folder if os.path.ismount(folder) else mounted(server, path)
    if found is not None:
        if not os.path.isdir(found):
            raise Failed(f"The folder {path} does not exist on {server}.")
        return found
    if os.geteuid() != 0:
        raise Failed(
            f"{server}:{path} is not mounted on this machine, and only root can mount it; ask an administrator to mount it."
        )
    address = address_of(server, opened)
    try:
        done = subprocess.run(
            ["mount", "-t", "nfs", "-o", "nosuid,nodev", f"{address}:{path}", folder],
            capture_output=True,
            text=True,
            timeout=MOUNT_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{server} did not answer within {MOUNT_SECONDS} s.") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["mount failed"]
        raise Failed(f"{server}:{path} cannot be mounted: {lines[0].strip().rstrip('.')}.")
    return folder


def address_of(server: str, opened: Sequence[str]) -> str:
    """Resolves and checks the address for the kernel, which would otherwise resolve the name again without a check."""
    # An administrator has named the server (PORTAL_NFS_SERVERS), so its private address is allowed.
    rules = outgoing.Rules.read(opened).opening(outgoing.ANYWHERE)
    try:
        address = outgoing.open_addresses(server, PORT, rules)[0]
    except outgoing.Closed as error:
        raise Failed(str(error)) from None
    except OSError as error:
        raise Failed(f"There is no server of the name {server}.") from error
    return f"[{address}]" if ":" in address else address


def detach(folder: str) -> None:
    """Undoes a mount of `attach`; leaves other mounts."""
    if os.path.ismount(folder):
        subprocess.run(["umount", "-l", folder], capture_output=True, stdin=subprocess.DEVNULL, check=False)


def mounted(server: str, path: str, table: str = "/proc/self/mountinfo") -> str | None:
    """Returns the path where `server:path` is visible: on its own mount, or that of the nearest parent folder."""
    best: tuple[int, str] | None = None
    path = "/" + path.strip("/")
    with open(table) as file:
        for line in file:
            left, _, right = line.partition(" - ")
            kind, source = right.split()[:2]
            host, _, export = _plain(source).rpartition(":")
            export = "/" + export.strip("/")
            if not kind.startswith("nfs") or host.strip("[]") != server.strip("[]"):
                continue
            if path == export or path.startswith(export.rstrip("/") + "/"):
                rest = path[len(export.rstrip("/")) :].strip("/")
                point = os.path.join(_plain(left.split()[4]), rest).rstrip("/")
                if best is None or len(export) > best[0]:
                    best = (len(export), point)
    return best[1] if best else None


def _plain(text: str) -> str:
    """Decodes mountinfo, which writes space, tab, newline and backslash as three octal digits."""
    for code in ("\\040", "\\011", "\\012", "\\134"):
        text = text.replace(code, chr(int(code[1:], 8)))
    return text
