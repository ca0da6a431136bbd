"""NFS: mounted by the nodes that run tasks, not by the portal, so that files are seen only inside a cluster.

What can be tried from here is whether an NFS server answers at that address.
"""

from __future__ import annotations

import socket

from datastores.drivers import addresses
from datastores.drivers.base import CONNECT_SECONDS, DriverError, Unseen

PORT = 2049


class Nfs(Unseen):
    why = "Nodes mount this datastore, the portal does not: its files are seen inside a cluster."

    def __init__(self, *, server: str, path: str) -> None:
        self.server, self.path = server, path

    def test(self) -> str:
        try:
            addresses.check_literal(self.server)
            with socket.create_connection((self.server.strip("[]"), PORT), timeout=CONNECT_SECONDS) as connection:
                addresses.check_peer(connection)
        except addresses.Denied as error:
            raise DriverError(str(error), "server") from error
        except socket.gaierror as error:
            raise DriverError(f"Unreachable: there is no server of this name at {self.server}.", "server") from error
        except OSError as error:
            why = "the connection is refused" if isinstance(error, ConnectionRefusedError) else "nothing answers"
            raise DriverError(f"Unreachable: {why} at {self.server}:{PORT}.", "server") from error
        return f"{self.server} answers; whether it exports {self.path} shows when a node mounts it."
