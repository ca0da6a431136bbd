"""NFS: mounted by the nodes that run tasks, not by the portal, so that files are seen only inside a cluster.

What can be tried from here is whether an NFS server answers at that address.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

from datastores.drivers import addresses
from datastores.drivers.base import CONNECT_SECONDS, Content, DriverError, Entry, Listing, NotPossible, Stream

PORT = 2049
ONLY_INSIDE = "Nodes mount this datastore, the portal does not: its files are seen inside a cluster."


class Nfs:
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

    def list(self, folder: str, *, search: str = "", cursor: str = "", limit: int = 200) -> Listing:
        raise NotPossible(ONLY_INSIDE)

    def walk(self, folder: str) -> Iterator[Entry]:
        raise NotPossible(ONLY_INSIDE)

    def open(self, path: str) -> Content:
        raise NotPossible(ONLY_INSIDE)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        raise NotPossible(ONLY_INSIDE)

    def upload(self, path: str, stream: Stream, size: int) -> None:
        raise NotPossible(ONLY_INSIDE)

    def delete(self, path: str) -> None:
        raise NotPossible(ONLY_INSIDE)

    def delete_folder(self, folder: str) -> int:
        raise NotPossible(ONLY_INSIDE)
