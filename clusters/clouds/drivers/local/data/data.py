"""The agent's view of a run's data: folders of this machine, and the process that copies remote data."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clusters.clouds.drivers.base import (
    CodeCommit,
    CodeFiles,
    LocalSource,
    S3Source,
    Source,
    StorageSeen,
    StorageState,
    VolumeSource,
)
from clusters.clouds.drivers.local.agent import uids
from clusters.clouds.drivers.local.agent.machine import PartOf
from clusters.clouds.drivers.local.data import storage
from clusters.clouds.drivers.local.data.division import share
from clusters.clouds.drivers.local.data.files import read_json, write_json
from clusters.clouds.drivers.local.network import outward
from clusters.clouds.drivers.local.task import processes, sandbox

TRY_AGAIN = 5.0


class Data:
    """`ready`: tasks may start. `over`: nothing is left to store (or it was given up: not `stored`).

    A run without remote data needs no process: it is ready and over at once.
    """

    def __init__(self, run: PartOf) -> None:
        self.run = run
        self.folder = run.folder / "storage"
        # Dividing local files needs the process, too, because there may be many.
        self.remote = isinstance(run.plan.code, CodeCommit) or any(
            mount.is_divided or self.own(mount.source) is None for mount in run.plan.mounts
        )
        self.process: processes.Detached | None = None
        self.status: dict[str, Any] = {}
        self.prepared = False
        self.problem = ""
        # A warning about local folders without files; the process reports remote ones.
        self.empty = ""
        self.over = False

    @property
    def ready(self) -> bool:
        return self.prepared and (not self.remote or bool(self.status.get("fetched")))

    @property
    def stored(self) -> bool:
        return bool(self.status.get("stored", True))

    @property
    def state(self) -> StorageState:
        state: StorageState = (
            "failed" if self.problem else self.status.get("state", "fetching" if self.remote else "none")
        )
        return state

    @property
    def message(self) -> str:
        return self.problem or str(self.status.get("message", ""))

    @property
    def warning(self) -> str:
        """See `StorageSeen`."""
        found = (self.empty or self.status.get("warning"), self.status.get("left"))
        return " ".join(str(each) for each in found if each)

    @property
    def seen(self) -> StorageSeen:
        read = self.status.get("read") or ["", 0, 0]
        return StorageSeen(self.run.ref.id, self.state, self.message, self.warning, *read)

    @property
    def idle(self) -> bool:
        return self.process is None

    @property
    def cached(self) -> list[str]:
        """The cache keys that it uses, as last written by its process."""
        return list((read_json(self.folder / "status.json") or {}).get("cached", {}).values())

    @property
    def wanted(self) -> int:
        """Bytes that are about to be cached for it."""
        return int(self.status.get("wanted", 0))

    @property
    def why_waiting(self) -> str:
        """The message for waiting tasks, without the progress in megabytes."""
        return self.message if self.state == "failed" else "The data of the run is being fetched."

    @property
    def room(self) -> Path:
        """The folder in which its tasks write. Raises OSError."""
        return self.run.machine.room_for(self.run.ref)

    @property
    def scratch(self) -> Path:
        """The output folder of a run without a datastore for output; deleted with the run."""
        return self.room / "scratch"

    @property
    def work(self) -> Path:
        """The parent of the tasks' working folders; deleted with the run."""
        return self.room / "work"

    @property
    def code(self) -> Path:
        return self.run.folder / "code"

    def own(self, source: Source) -> LocalSource | None:
        """Returns the local folder of a source, or None for a remote one."""
        if isinstance(source, VolumeSource):
            root = self.run.machine.volume(source.volume.id)
            return LocalSource(str(root), str(root / source.folder))
        return source if isinstance(source, LocalSource) else None

    def place(self, number: int) -> Path:
        """Returns the folder with the files of remote mount `number`."""
        return Path(self.status.get("sources", {}).get(str(number), self.copy(number)))

    def share(self, number: int, part: int) -> Path:
        """Returns the folder with this part of divided mount `number`."""
        return Path(share(str(self.copy(number)), part))

    @property
    def variables(self) -> dict[str, str]:
        """The variables for reading streamed input."""
        return {
            name: value
            for mount in self.run.plan.mounts
            for name, value in mount.stream_variables(outward.INPUT_URL).items()
        }

    def copy(self, number: int) -> Path:
        return (self.run.folder if self.run.plan.mounts[number].read_only else self.room) / "mounts" / str(number)

    def resume(self) -> None:
        """Finds the process after a restart of the agent."""
        self.look()
        if self.remote and self.folder.is_dir():
            self.process = processes.Detached.adopt(self.folder, self._ended)

    def look(self) -> None:
        """Reads what the process has written."""
        self.status = read_json(self.folder / "status.json") or self.status
        self.over = bool(self.status.get("over"))
        self.tell()

    def tell(self) -> None:
        if self.remote or self.problem or self.empty:
            self.run.machine.emit(self.seen)

    def start(self) -> None:
        """Creates the folders and starts the process, unless done before."""
        if not self.prepared:
            try:
                self._prepare()
            except OSError as error:
                self.problem = f"The folder {error.filename} cannot be used: {error.strerror}."
                self.tell()
                self.run.machine.later(TRY_AGAIN, self.run.ref.id)
                return
            self.prepared = True
            if self.problem or self.empty:
                self.problem = ""
                self.run.machine.emit(self.seen)
        if self.remote and not self.over:
            self._launch("")

    def _prepare(self) -> None:
        owner = -1 if self.run.uid is None else self.run.uid
        folders = [self.scratch, self.work]
        for number, mount in enumerate(self.run.plan.mounts):
            if own := self.own(mount.source):
                if isinstance(mount.source, VolumeSource):
                    self.run.machine.attach_volume(mount.source, owner)
                create = None if mount.read_only else owner
                handle = sandbox.open_inside(own.root, own.path, create_for=create)
                if (
                    mount.read_only
                    and not (mount.follow or mount.shown_gib)
                    and storage.is_empty(f"/proc/self/fd/{handle}")
                ):
                    where = "the volume" if isinstance(mount.source, VolumeSource) else own.path
                    self.empty = f"The input is empty: there is nothing in {where}."
                os.close(handle)
            if own is None or mount.is_divided:
                folders.append(self.copy(number))
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            os.chown(folder, owner, owner)
        if isinstance(self.run.plan.code, CodeFiles):
            self._write(self.run.plan.code.files)
        elif self.run.plan.code:
            self.code.mkdir(exist_ok=True)
            os.chown(self.code, owner, owner)

    def _write(self, files: Mapping[str, str]) -> None:
        """Writes the files of the code, owned by the agent and readable for all. The plan's author has checked the names.
        Renames the complete folder into place, where it stays unchanged: tasks may be reading it."""
        if self.code.is_dir():
            return
        partial = self.code.with_suffix(".new")
        for name, text in files.items():
            path = partial / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="")
            path.chmod(0o644)
        for folder, _, _ in os.walk(partial):
            os.chmod(folder, 0o755)  # noqa: S103  tasks have another uid
        partial.rename(self.code)

    def _launch(self, command: str) -> None:
        """Sends `command` to the process; starts it if necessary."""
        machine = self.run.machine
        (self.folder / "root").mkdir(parents=True, exist_ok=True)
        if (read_json(self.folder / "command.json") or {}).get("command", "") != command:
            write_json(self.folder / "command.json", {"command": command}, durable=True)
            if self.process is not None:
                self.process.send(signal.SIGUSR1)
        if self.process is not None:
            return
        mounts = []
        for number, mount in enumerate(self.run.plan.mounts):
            own = self.own(mount.source)
            if own is None or mount.is_divided:
                kind = "local" if own else "s3" if isinstance(mount.source, S3Source) else "nfs"
                row = {"number": str(number), "kind": kind, "folder": str(self.copy(number))}
                flags = {
                    name: getattr(mount, name)
                    for name in (
                        "mount_path",
                        "read_only",
                        "is_input",
                        "follow",
                        "shown_gib",
                        "parts",
                        "fold",
                        "folds",
                        "version",
                        "digest",
                        "cached",
                        "stream_key",
                    )
                }
                mounts.append(row | vars(own or mount.source) | flags)
        spec: dict[str, Any] = {
            "name": f"{self.run.ref.id}/storage",
            "poke": str(machine.poke),
            "uid": self.run.uid,
            "mounts": mounts,
        }
        spec |= {
            "cache": str(machine.cache),
            "cache_uid": None if self.run.uid is None else machine.first_uid + uids.CACHE,
        }
        spec |= {"least_free": machine.least_free, "work": str(self.work)}
        if isinstance(self.run.plan.code, CodeCommit):
            spec["code"] = {**vars(self.run.plan.code), "into": str(self.code), "python": machine.git}
        spec |= {"rclone": machine.rclone, "store_seconds": machine.store_seconds, "open": _open()}
        write_json(self.folder / "spec.json", spec)
        self.process = processes.Detached.launch(storage.__file__, self.folder, self._ended)

    def finish(self) -> None:
        """Requests the final store, once; `over` follows later."""
        if not self.remote or not self.folder.is_dir():
            self.over = True
        elif not self.over:
            self._launch("finish")

    def pause(self) -> None:
        """Asks the process to store what there is and to end for now."""
        if self.process is not None:
            self._launch("pause")

    def kill(self) -> None:
        """Ends the process now; the next agent completes its work."""
        if self.process is not None:
            self.process.send(signal.SIGTERM)

    def _ended(self) -> None:
        self.process = None
        self.look()
        if self.over or self.run.machine.leaving:
            self.run.machine.wake(self.run.ref.id)
        else:  # it was killed, or a bug ended it
            self.run.machine.later(TRY_AGAIN / 5, self.run.ref.id)


def _open() -> list[str]:
    """Returns what the portal's setting opens besides public addresses (portal/network/outgoing.py)."""
    return [each for each in map(str.strip, os.environ.get("PORTAL_OPEN_NETWORKS", "").split(",")) if each]
