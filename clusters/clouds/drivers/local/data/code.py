"""Fetches the commit that a run starts from, by ../../git.py in a separate process.

It runs with the task's uid in a sandbox that contains only the portal's Python and the target folder. Data from the Git server
are parsed only in there, name and token are only in its environment, and it ends with its parent process.
"""

from __future__ import annotations

import os
import select

from clusters.clouds.drivers.local.task import sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_PROGRAM, _OUTGOING, _FILES = "/elearn/git.py", "/elearn/outgoing.py", "/elearn/code"
# The program's exit code for errors that a retry would not fix.
_REFUSED = 77
_SAID = 4096


class Failed(Exception):
    """The text is a sentence for people."""


class Refused(Failed):
    """A retry would fail again."""


def fetch(spec: dict[str, Any], folder: str, wake: int, check: Callable[[], None]) -> None:
    """Fills the folder `into`. Calls `check` when `wake` is readable; an exception from it aborts."""
    own = os.path.join(folder, "git")
    os.makedirs(own, 0o700, exist_ok=True)
    if spec["uid"] is not None:  # also if an earlier process was killed before this
        os.chown(own, spec["uid"], spec["uid"])
    said, says = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        try:
            _become(spec, folder, own, says)
        except Exception as error:  # noqa: BLE001  whatever it is, it must be told, and this process may not go on
            os.write(says, str(error).encode())
        finally:
            os._exit(1)
    os.close(says)
    text = b""
    try:
        poll = select.poll()
        for handle in (said, wake):
            poll.register(handle, select.POLLIN)
        while True:
            ready = [handle for handle, _ in poll.poll()]
            if wake in ready:
                check()
            if said in ready:
                if not (piece := os.read(said, _SAID)):
                    break
                text = (text + piece)[-_SAID:]
    except BaseException:
        os.kill(child, 9)
        raise
    finally:
        os.close(said)
        _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code:
        lines = text.decode(errors="replace").strip().splitlines() or ["It took too long, or was ended."]
        raise (Refused if code == _REFUSED else Failed)(lines[-1].rstrip(".") + ".")


def _become(spec: dict[str, Any], folder: str, own: str, says: int) -> None:
    os.dup2(os.open("/dev/null", os.O_RDWR), 0)
    os.dup2(says, 1)
    os.dup2(says, 2)
    code = spec["code"]
    here = os.path.abspath(__file__).rsplit("/clusters/", 1)[0]
    sandbox.unshare()
    binds: list[sandbox.Bind] = [
        *sandbox.python_binds(code["python"]),
        {"source": f"{here}/clusters/clouds/drivers/git.py", "target": _PROGRAM, "read_only": True},
        {"source": f"{here}/portal/network/outgoing.py", "target": _OUTGOING, "read_only": True},
        {"source": code["into"], "target": _FILES},
    ]
    sandbox.build(os.path.join(folder, "root"), binds, tmp=own, proc=False)
    sandbox.drop_privileges(spec["uid"])
    sandbox.die_with_parent()
    env = {
        "HOME": "/tmp",  # noqa: S108  its own
        "LANG": "C.UTF-8",
        "GIT_OUTGOING": _OUTGOING,
        "GIT_OPEN": ",".join(spec["open"]),
        "GIT_NAME": code["name"],
        "GIT_TOKEN": code["token"],
    }
    python = os.path.join(code["python"], "bin", "python")
    # The full path, from which Python finds its virtual environment.
    argv = [python, "-I", _PROGRAM, code["url"], code["commit"], _FILES, "/tmp/store", code["folder"]]  # noqa: S108
    os.execve(python, argv, env)  # noqa: S606  no shell is the point
