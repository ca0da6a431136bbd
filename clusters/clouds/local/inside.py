"""Runs one command inside a running task: `python -I -S inside.py FOLDER ARGV…` joins the namespaces of its PID 1.

The command gets the task's environment, uid and lack of privileges; its exit code is ours.
"""

from __future__ import annotations

import json
import os
import sys

if not __package__:  # run as a script; the isolated interpreter has no other way to find its neighbours
    sys.path[0:0] = [os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))]

from clusters.clouds.local import sandbox, shim


def main(folder: str, argv: list[str]) -> int:
    values = []
    for name in ("spec.json", "status.json"):
        with open(os.path.join(folder, name)) as file:
            values.append(json.load(file))
    spec, status = values
    init = os.pidfd_open(status["init"])
    if shim.start_time(status["init"]) != status["init_start"]:
        print("The task has ended.")
        return 1
    flags = sandbox.CLONE_NEWNS | sandbox.CLONE_NEWPID | sandbox.CLONE_NEWIPC
    if os.geteuid() == 0:
        sandbox.setns(init, flags)
    else:  # nobody may look into PID 1, not even its own user, but the task itself is in the same namespaces
        with open(f"/proc/{status['init']}/task/{status['init']}/children") as file:
            sandbox.setns(os.pidfd_open(int(file.read().split()[0])), flags | sandbox.CLONE_NEWUSER)
    child = os.fork()
    if child == 0:
        try:
            shim.become_task(spec, 1)
            sandbox.die_with_parent()
            shim.execute(argv, spec["env"])
        except Exception as error:  # noqa: BLE001  whatever it is, it must be told, and this process may not go on
            text = error.strerror if isinstance(error, OSError) else str(error)
            os.write(1, f"{argv[0]!r} cannot be started: {text}\n".encode())
        finally:
            os._exit(shim.EXIT_NOT_STARTED)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    os._exit(main(sys.argv[1], sys.argv[2:]))
