"""Runs a short command in a running task for information, such as its installed packages or a notebook in its home."""

from __future__ import annotations

import time
from collections.abc import Sequence

from clusters.clouds.drivers.base import NO_COMMANDS, RunsCommands
from clusters.clouds.registry import cloud_of, run_ref
from clusters.runs.models import Run
from portal.errors import Conflict
from portal.models import User
from portal.web.limits import STREAMS

# Limits of a command: seconds, and bytes of output.
SECONDS = 100.0
MAX_SAID = 9 * 2**20


def answer_of(run: Run, role: str, argv: Sequence[str], *, user: User) -> tuple[bytes, str, int]:
    """Output, errors and exit code of a command in the first task of a role. Uses one of the places for streams meanwhile.
    Raises CloudError, and Conflict where commands cannot be run, or if this one takes too long or prints too much."""
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
