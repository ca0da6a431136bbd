"""Forwards connections from the network of a run to its servers: this machine's package index and the portal's tracking
(packages.py), and the run's streamed input (../data/streaming.py).

Runs in threads of the holder (holder.py), because nearly all runs never connect: then there is no connection thread and no
asyncio.
"""

from __future__ import annotations

import os
import socket
import threading

# The index's address in tasks. Nothing else of 127/8 is in use in their network.
HOST, PORT = "127.0.0.53", 3141
URL = f"http://{HOST}:{PORT}/simple/"
# Where the same server forwards what programs record by MLflow's client.
TRACKING_URL = f"http://{HOST}:{PORT}"
PIECE = 256 * 1024
AT_ONCE = 16
# The streamed input's address in tasks, each of which reads several pieces at once.
INPUT, INPUT_AT_ONCE = ("127.0.0.54", 3142), 256
INPUT_URL = "http://{}:{}".format(*INPUT)
# In the folder of the storage process.
INPUT_SOCKET = "stream"
Address = tuple[str, int]


def folder_of(path: str) -> int:
    """Returns a handle of the socket's folder, through which even users without access to that folder can connect."""
    return os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def begin(path: str, folder: int, at: Address = (HOST, PORT), most: int = AT_ONCE) -> None:
    """Serves as long as this process lives, at most `most` connections at once. `folder`: handle of `path`'s folder."""
    server = socket.create_server(at, backlog=64)
    to = f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    threading.Thread(target=_serve, args=(server, to, most), name="outward", daemon=True).start()


def _serve(server: socket.socket, to: str, most: int) -> None:
    places = threading.Semaphore(most)
    while True:
        places.acquire()
        try:
            client = server.accept()[0]
        except OSError:  # the client is gone
            places.release()
            continue
        threading.Thread(target=_lead, args=(client, to, places), daemon=True).start()


def _lead(client: socket.socket, to: str, places: threading.Semaphore) -> None:
    try:
        with client, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as index:
            index.connect(to)
            back = threading.Thread(target=_copy, args=(index, client), daemon=True)
            back.start()
            _copy(client, index)
            back.join()
    except OSError:  # the index restarts; the client sees a closed connection
        return
    finally:
        places.release()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copies until one side ends, then shuts the other down."""
    try:
        while piece := source.recv(PIECE):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for each in (source, target):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
