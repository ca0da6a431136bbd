"""Holds the network of one run, as the pause container of a pod does: its tasks join it, and nobody else is in it.

Run as `python -I -S holder.py FOLDER LOCK` (see processes.py). In the network there is nothing but a loopback of its own,
so the run's tasks reach each other by 127.0.0.1, and no other run, no server of this machine, no other machine; abstract
Unix sockets are apart, too. The process that was started leaves when the network is there, and its child stays until
SIGTERM. What went wrong stands in status.json.
"""

from __future__ import annotations

import json
import os
import signal
import sys

if not __package__:  # run as a script; the isolated interpreter has no other way to find its neighbours
    sys.path[0:0] = [os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))]

from clusters.clouds.local import netns, sandbox
from clusters.clouds.local.shim import leave_parent


def main(folder: str, lock: int) -> None:
    try:
        netns.make()
    except (sandbox.SandboxError, OSError) as error:
        with open(os.path.join(folder, "status.json"), "w") as file:
            json.dump({"error": str(error)}, file)
        return
    leave_parent(lock)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    while True:
        signal.pause()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
