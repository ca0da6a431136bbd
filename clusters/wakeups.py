"""Wake-ups of the loops that look after clusters (`tasks.py`): hints that a row may need work."""

from __future__ import annotations

from portal.wakeups import send


def waiting_key(appcode_id: int) -> str:
    return f"woken:waiting:{appcode_id}"


def whole_key(appcode_id: int, part_of: str) -> str:
    return f"woken:whole:{appcode_id}:{part_of}"


def wake(run_id: int) -> None:
    """Asks for `run_id` to be reconciled soon. Called after a commit; without a broker the sweep does it later."""
    send("clusters.tasks.reconcile_run", run_id)


def wake_waiting(appcode_id: int) -> None:
    """Asks for the runs of an appcode that wait for quota to be looked at again. Of many that end at once the first does."""
    send("clusters.tasks.admit_waiting", appcode_id, once=waiting_key(appcode_id))


def wake_next(cluster_id: int) -> None:
    """Asks for the run that somebody wants as soon as the one before it is over."""
    send("clusters.tasks.deploy_next", cluster_id)


def wake_whole(appcode_id: int, part_of: str) -> None:
    """Asks for what made a part (`Cluster.part_of`), whose run has come to its end, to go on. Of many parts that end at once the
    first does."""
    send("clusters.tasks.advance", appcode_id, part_of, once=whole_key(appcode_id, part_of))


def wake_purge(cluster_id: int) -> None:
    """Asks for the logs of a deleted cluster to be removed once its runs are over."""
    send("clusters.tasks.purge_cluster", cluster_id)


def wake_logs() -> None:
    """Asks for logs of tasks that have ended to be copied."""
    send("clusters.tasks.copy_logs")


def wake_output(run_id: int) -> None:
    """Asks for what a run has written to be listed, now that it is gone."""
    send("clusters.tasks.note_output", run_id)


def wake_crashes(run_id: int) -> None:
    """Asks for what crashes have cost a run to be counted, now that it is gone."""
    send("clusters.tasks.note_crashes", run_id)


def wake_volume(volume_id: int) -> None:
    """Asks for a cloud to be told what is wanted of a volume."""
    send("clusters.tasks.settle_volume", volume_id)
