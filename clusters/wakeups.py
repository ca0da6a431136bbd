"""Wake-ups of the cluster loops (`tasks.py`): hints that a row may need work."""

from __future__ import annotations

from portal.wakeups import send


def waiting_key(appcode_id: int) -> str:
    return f"woken:waiting:{appcode_id}"


def whole_key(appcode_id: int, part_of: str) -> str:
    return f"woken:whole:{appcode_id}:{part_of}"


def places_key(cloud: str) -> str:
    return f"woken:places:{cloud}"


def numbers_key(appcode_id: int) -> str:
    return f"woken:numbers:{appcode_id}"


def wake(run_id: int) -> None:
    """Requests a reconcile of the run. Call it after the commit. Without a broker the sweep does the work later."""
    send("clusters.tasks.reconcile_run", run_id)


def wake_waiting(appcode_id: int) -> None:
    """Requests another check of the appcode's runs that wait for quota. Many requests at once are merged into one."""
    send("clusters.tasks.admit_waiting", appcode_id, once=waiting_key(appcode_id))


def wake_places(cloud: str) -> None:
    """Requests places for the runs of a cloud that wait for them (runs/placing/places.py). Merges concurrent requests."""
    send("clusters.tasks.place_runs", cloud, once=places_key(cloud))


def wake_next(cluster_id: int) -> None:
    """Requests the run that a user wants as soon as the current one has ended."""
    send("clusters.tasks.deploy_next", cluster_id)


def wake_whole(appcode_id: int, part_of: str) -> None:
    """Requests that a part's owner (`Cluster.part_of`) continues after the part's run. Merges concurrent requests."""
    send("clusters.tasks.advance", appcode_id, part_of, once=whole_key(appcode_id, part_of))


def wake_purge(cluster_id: int) -> None:
    """Requests the deletion of a deleted cluster's logs once its runs have ended."""
    send("clusters.tasks.purge_cluster", cluster_id)


def wake_logs() -> None:
    send("clusters.tasks.copy_logs")


def wake_output(run_id: int) -> None:
    """Requests a listing of the output of a run that is gone."""
    send("clusters.tasks.note_output", run_id)


def wake_crashes(run_id: int) -> None:
    """Requests the cost of the crashes of a run that is gone."""
    send("clusters.tasks.note_crashes", run_id)


def wake_numbers(appcode_id: int) -> None:
    """Requests the numbers of the appcode's runs that are gone, or at which somebody looks. Merges concurrent requests."""
    send("clusters.tasks.read_numbers", appcode_id, once=numbers_key(appcode_id))


def wake_volume(volume_id: int) -> None:
    """Requests that the desired state of a volume is applied to its cloud."""
    send("clusters.tasks.settle_volume", volume_id)
