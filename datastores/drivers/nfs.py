"""NFS: the nodes that run tasks mount it, the portal does not, so its files are visible only inside a cluster. A test
only connects to the NFS server."""

from __future__ import annotations

import socket

from django.conf import settings

from datastores.drivers.base import CONNECT_SECONDS, DriverError, Unseen
from portal.network import outgoing

PORT = 2049


def rules() -> outgoing.Rules:
    """An administrator has named the server (PORTAL_NFS_SERVERS), so its private address is open."""
    return settings.OUTGOING.opening(outgoing.ANYWHERE)


class Nfs(Unseen):
    why = "Nodes mount this datastore, the portal does not: its files are seen inside a cluster."

    def __init__(self, *, server: str, path: str) -> None:
        self.server, self.path = server, path

    def test(self) -> str:
        try:
            outgoing.connect(self.server, PORT, rules(), CONNECT_SECONDS).close()
        except outgoing.Closed as error:
            raise DriverError(str(error), "server") from error
        except socket.gaierror as error:
            raise DriverError(f"Unreachable: there is no server of this name at {self.server}.", "server") from error
        except OSError as error:
            why = "the connection is refused" if isinstance(error, ConnectionRefusedError) else "nothing answers"
            raise DriverError(f"Unreachable: {why} at {self.server}:{PORT}.", "server") from error
        return f"{self.server} answers; whether it exports {self.path} shows when a node mounts it."
