"""The input of a run that is streamed: a process that serves it (../../stream.py) on a socket to which the run's network leads.

It has the task's uid and no privilege, connects by portal/outgoing.py alone, and ends with the process that started it.
"""

from __future__ import annotations

import os
import signal
import socket

from clusters.clouds.drivers import stream
from clusters.clouds.drivers.local.network import outward, socks
from clusters.clouds.drivers.local.network.loaded import outgoing
from clusters.clouds.drivers.local.task import sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class Streaming:
    """Of one mount."""

    def __init__(self, spec: dict[str, Any], mount: dict[str, Any], folder: str) -> None:
        self.spec, self.mount, self.folder = spec, mount, folder
        self.child = 0

    def look(self) -> None:
        """Starts it when there is none."""
        if self.child and not os.waitpid(self.child, os.WNOHANG)[0]:
            return
        listening = self._listen()
        self.child = os.fork()
        if self.child == 0:
            try:
                self._serve(listening)
            except BaseException as error:  # noqa: BLE001  whatever it is, it must be told, and this process may not go on
                os.write(2, f"What streams input has ended: {error!r}\n".encode())
            finally:
                os._exit(1)
        listening.close()

    def stop(self) -> None:
        """For good."""
        if self.child:
            os.kill(self.child, signal.SIGKILL)
            os.waitpid(self.child, 0)
            self.child = 0

    def _listen(self) -> socket.socket:
        """Whoever finds it may connect; nobody but the holder of the run's network walks there."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        place = os.open(self.folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        path = f"/proc/self/fd/{place}/{outward.INPUT_SOCKET}"
        if os.path.lexists(path):
            os.unlink(path)
        listening.bind(path)
        os.chmod(path, 0o666)  # noqa: S103  nobody else walks to it
        os.close(place)
        listening.listen(128)
        return listening

    def _serve(self, listening: socket.socket) -> None:
        signal.set_wakeup_fd(-1)
        # Above all the lock that says that our parent lives.
        os.closerange(3, listening.fileno())
        os.closerange(listening.fileno() + 1, 1 << 16)
        said = ("endpoint", "region", "bucket", "prefix", "access_key", "secret_key")
        folder = stream.Folder(**{name: self.mount[name] for name in said})
        server = stream.Server(listening, folder, self.mount["stream_key"][:20], dial(self.spec["open"]))
        sandbox.drop_privileges(self.spec["uid"])
        sandbox.die_with_parent()
        server.serve_forever()


def dial(opened: Sequence[str]) -> stream.Dial:
    """How the store is reached; `opened` is what PORTAL_OPEN_NETWORKS says."""
    rules = outgoing.Rules.read(opened)

    def connect(host: str, port: int) -> socket.socket:
        try:
            return outgoing.connect(host, port, rules, socks.CONNECT_SECONDS)
        except outgoing.Closed as error:
            raise OSError(str(error)) from None
        except OSError:
            raise OSError("it cannot be reached") from None

    return connect
