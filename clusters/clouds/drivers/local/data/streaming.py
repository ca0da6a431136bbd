"""Serves a run's streamed input (../../stream.py): a process with a socket to which the run's network forwards.

It has the task's uid and no privileges, connects only by portal/network/outgoing.py, and ends with its parent process.
"""

from __future__ import annotations

import os
import signal
import socket

from clusters.clouds.drivers import stream
from clusters.clouds.drivers.local.network import outward, socks
from clusters.clouds.drivers.local.network.preload import outgoing
from clusters.clouds.drivers.local.task import sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class Streaming:
    """The server of one mount."""

    def __init__(self, spec: dict[str, Any], mount: dict[str, Any], folder: str) -> None:
        self.spec, self.mount, self.folder = spec, mount, folder
        self.child = 0

    def look(self) -> None:
        """Starts the server unless it runs."""
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
        if self.child:
            os.kill(self.child, signal.SIGKILL)
            os.waitpid(self.child, 0)
            self.child = 0

    def _listen(self) -> socket.socket:
        """Opens a socket for all users; only the holder of the run's network can reach its folder."""
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
        # Closes inherited descriptors, above all the lock that signals that the parent lives.
        os.closerange(3, listening.fileno())
        os.closerange(listening.fileno() + 1, 1 << 16)
        said = ("endpoint", "region", "bucket", "prefix", "access_key", "secret_key")
        folder = stream.Folder(**{name: self.mount[name] for name in said})
        server = stream.Server(listening, folder, self.mount["stream_key"][:20], dial(self.spec["open"]))
        sandbox.drop_privileges(self.spec["uid"])
        sandbox.die_with_parent()
        server.serve_forever()


def dial(opened: Sequence[str]) -> stream.Dial:
    """Returns a function that connects to the store. `opened`: PORTAL_OPEN_NETWORKS."""
    rules = outgoing.Rules.read(opened)

    def connect(host: str, port: int) -> socket.socket:
        try:
            return outgoing.connect(host, port, rules, socks.CONNECT_SECONDS)
        except outgoing.Closed as error:
            raise OSError(str(error)) from None
        except OSError:
            raise OSError("it cannot be reached") from None

    return connect
