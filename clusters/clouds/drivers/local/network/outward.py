"""Leads connections from the network of a run to the servers that it reaches: the package index of this machine (packages.py),
and what streams its own input (../data/streaming.py).

In threads of the holder (holder.py), because nearly every run asks for nothing at all: no connection, no thread, no asyncio.
"""

from __future__ import annotations

import os
import socket
import threading

# Where tasks find it. Of the whole of 127/8 in their network nothing else is in use.
HOST, PORT = "127.0.0.53", 3141
URL = f"http://{HOST}:{PORT}/simple/"
PIECE = 256 * 1024
AT_ONCE = 16
# Where they find their input, of which each task reads several pieces at once.
INPUT, INPUT_AT_ONCE = ("127.0.0.54", 3142), 256
INPUT_URL = "http://{}:{}".format(*INPUT)
# In the folder of the storage process.
INPUT_SOCKET = "stream"
Address = tuple[str, int]


def folder_of(path: str) -> int:
    """A handle by which the socket is found even by who may not walk there."""
    return os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def begin(path: str, folder: int, at: Address = (HOST, PORT), most: int = AT_ONCE) -> None:
    """Serves as long as this process lives, `most` connections at once; `folder` is that of the socket `path`."""
    server = socket.create_server(at, backlog=64)
    to = f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    threading.Thread(target=_serve, args=(server, to, most), name="outward", daemon=True).start()


def _serve(server: socket.socket, to: str, most: int) -> None:
    places = threading.Semaphore(most)
    while True:
        places.acquire()
        try:
            client = server.accept()[0]
        except OSError:  # it hung up meanwhile
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
    except OSError:  # the index is being started again; whoever asks is told by the end of the connection
        return
    finally:
        places.release()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Until one of them ends; then the other one is told so."""
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
