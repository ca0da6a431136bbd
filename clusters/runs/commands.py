"""Asks a running task something by a command that ends soon: what is installed there, what a notebook in its home says."""

from __future__ import annotations

import time
from collections.abc import Sequence

from clusters.clouds.drivers.base import NO_COMMANDS, RunsCommands
from clusters.clouds.registry import cloud_of, run_ref
from clusters.models import Run
from portal.errors import Conflict
from portal.limits import STREAMS
from portal.models import User

# How long a task may take to say it, and how much.
SECONDS = 100.0
MAX_SAID = 9 * 2**20


def answer_of(run: Run, role: str, argv: Sequence[str], *, user: User) -> tuple[bytes, str, int]:
    """Output, errors and exit code of a command in the first task of a role. One of the places for streams is held meanwhile.
    Raises CloudError, and Conflict where no command can be run, or it takes too long or says too much."""
    cloud = cloud_of(run)
    if not isinstance(cloud, RunsCommands):
        raise Conflict(NO_COMMANDS)
    out: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
    with STREAMS.enter(user.pk):
        end = time.monotonic() + SECONDS
        session = cloud.exec(run_ref(run), role, 0, argv)
        try:
            while session.exit_code is None:
                left = end - time.monotonic()
                if left <= 0 or sum(map(len, out.values())) > MAX_SAID:
                    raise Conflict("The task did not say it in time; try again when it is less busy.")
                if (output := session.receive(left)) is not None:
                    out[output.stream] += output.data
        finally:
            session.close()
    return bytes(out["stdout"]), out["stderr"].decode(errors="replace"), session.exit_code
