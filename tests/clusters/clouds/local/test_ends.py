"""How an attempt ended, from its shim's status file: properties of all histories, without a process."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clusters.clouds.drivers.base import TaskSeen
from clusters.clouds.drivers.local.agent.tasks import ended

SEEN = TaskSeen(1, "worker", 0, 0, "uid", "Running")
statuses = st.fixed_dictionaries(
    {"finished_at": st.just(2.0)},
    optional={
        "started_at": st.just(1.0),
        "stopping": st.just(True),
        "oom": st.booleans(),
        "failure": st.just("it cannot be started"),
        "error": st.just("no sandbox"),
    },
).flatmap(
    lambda said: (st.builds(lambda code: {"exit": code}, st.integers(0, 255)) | st.builds(
        lambda number: {"signal": number}, st.integers(1, 31)
    )).map(lambda how: {**said, **how})
)  # fmt: skip


@given(statuses, st.sampled_from(["", "Stopped", "Disrupted"]))
def test_what_ended_with_0_is_never_shown_as_failed(status: dict[str, object], asked: str) -> None:
    """A worker that exits with its master may be asked to stop at the same moment, though it exited with 0. A task that ends with
    the portal is started again, so it is no success."""
    end = ended(SEEN, status, asked, "", 1 << 30, 512)
    goes_on = asked == "Disrupted" and "stopping" in status
    if "error" not in status:
        assert end.disrupted == goes_on
        assert (end.phase == "Succeeded") == (status.get("exit") == 0 and not goes_on)
    assert end.phase in ("Succeeded", "Failed")
    assert (end.reason == "Stopped") == (asked == "Stopped" and "stopping" in status and "error" not in status)
