"""The programs of docker/rclone, with the variables and arguments that pods give them, against a real S3 server."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusters.clouds.drivers.base import Mount, Plan, S3Source
from clusters.clouds.drivers.kubernetes.render import names, storage
from clusters.clouds.drivers.kubernetes.settings import Settings
from clusters.clouds.drivers.kubernetes.watch.pod_status import storage_seen
from portal.up.services import program
from tests.kube.plans import plan
from tests.running import listening

NAME = "-a name; #1 with 'signs' [and] *more ä"
PROGRAMS = Path(__file__).parents[2] / "docker" / "rclone"


@pytest.fixture
def whole(s3: Any, bucket: str, tmp_path: Path) -> Plan:
    source = S3Source(s3.url, bucket, "in", s3.access_key, s3.secret_key)
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    return plan(
        mounts=(
            Mount(str(tmp_path / "in"), True, source),
            Mount(str(tmp_path / "out"), False, replace(source, prefix="out")),
        )
    )


def start(whole: Plan, container: str, **changes: str) -> subprocess.Popen[str]:
    """As kubelet starts it: its variables, those from the Secret among them, and its arguments."""
    (secret,) = (each for each in storage.manifests(whole) if each["metadata"]["name"] == names.secret_name(whole.run))
    found = next(each for each in storage.pod_parts(whole, Settings()).init if each["name"] == container)
    env = {each["name"]: _value(each, secret["stringData"]) for each in found["env"]}
    argv = [str(PROGRAMS / found["args"][0]), *(changes.get(word, word) for word in found["args"][1:])]
    path = f"{Path(program('rclone')).parent}:{os.environ['PATH']}"
    # Both containers of a pod have the same volume there.
    home = Path(whole.mounts[0].mount_path).parent / "home"
    home.mkdir(exist_ok=True)
    env |= {"PATH": path, "HOME": str(home), "SAYS": str(home / "said")}
    return subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True)


def _value(variable: Mapping[str, Any], secret: Mapping[str, str]) -> str:
    if "value" in variable:
        return str(variable["value"]).replace("$$", "$")
    return secret[variable["valueFrom"]["secretKeyRef"]["key"]]


def content(s3: Any, bucket: str, key: str) -> bytes | None:
    if key not in {each["Key"] for each in s3.client.list_objects_v2(Bucket=bucket).get("Contents", [])}:
        return None
    body: bytes = s3.client.get_object(Bucket=bucket, Key=key)["Body"].read()
    return body


def test_input_and_what_was_stored_before_are_fetched(s3: Any, bucket: str, whole: Plan, tmp_path: Path) -> None:
    s3.client.put_object(Bucket=bucket, Key="in/a/digits.csv", Body=b"1,2,3")
    s3.client.put_object(Bucket=bucket, Key="out/checkpoint", Body=b"step 7")
    s3.client.put_object(Bucket=bucket, Key="other", Body=b"not ours")
    fetch = start(whole, storage.FETCH)
    assert fetch.wait(30) == 0
    assert (tmp_path / "in" / "a" / "digits.csv").read_bytes() == b"1,2,3"
    assert (tmp_path / "out" / "checkpoint").read_bytes() == b"step 7"
    copied = (path for folder in ("in", "out") for path in (tmp_path / folder).rglob("*"))
    assert sorted(path.name for path in copied if path.is_file()) == ["checkpoint", "digits.csv"]


def test_what_is_only_looked_at_may_be_empty_and_of_too_much_a_part_is_copied(
    s3: Any, bucket: str, whole: Plan, tmp_path: Path
) -> None:
    looked_at = plan(mounts=(whole.mounts[1], replace(whole.mounts[0], shown_gib=20)), run=whole.run)
    assert start(looked_at, storage.FETCH).wait(30) == 0
    assert (tmp_path / "home" / "said").read_text().split() == [str(tmp_path / "out")]
    for name in ("a", "b"):
        s3.client.put_object(Bucket=bucket, Key=f"in/{name}", Body=b"x" * 3_000_000)
    assert start(looked_at, storage.FETCH, **{"20Gi": "4Mi"}).wait(30) == 0
    assert len(list((tmp_path / "in").glob("?"))) < 2  # no half of one
    said = (tmp_path / "in" / "NOT-ALL-IS-COPIED.txt").read_text()
    assert said == f"There are more than 4MiB in {bucket}/in/; the rest is not copied.\n"


def test_input_without_a_file_is_told_and_output_without_one_is_not(
    s3: Any, bucket: str, whole: Plan, tmp_path: Path
) -> None:
    fetch = start(whole, storage.FETCH)
    assert fetch.wait(30) == 0
    said = (tmp_path / "home" / "said").read_text()
    assert said.split() == [mount.mount_path for mount in whole.mounts]
    # As the pod has it when the kubelet has read that.
    parts = storage.pod_parts(whole, Settings())
    task = {"name": "task", "volumeMounts": parts.mounts}
    ended = {"name": storage.FETCH, "state": {"terminated": {"exitCode": 0, "message": said}}}
    made = {
        "metadata": {"labels": names.run_labels(Settings().portal, whole.run)},
        "spec": {"initContainers": parts.init, "containers": [task]},
        "status": {"phase": "Running", "initContainerStatuses": [ended]},
    }
    told = storage_seen(made)
    assert told
    assert told.warning == f"The input is empty: there is nothing in folder in of bucket {bucket}."
    ended["state"]["terminated"]["message"] = said.splitlines()[1]
    assert storage_seen(made) == replace(told, warning="")


def test_output_is_stored_while_the_task_runs_and_once_more_at_its_end(
    s3: Any, bucket: str, whole: Plan, tmp_path: Path
) -> None:
    store = start(whole, storage.STORE, **{str(storage.STORE_EVERY_SECONDS): "1"})
    try:
        (tmp_path / "out" / "loss").write_text("0.5")
        deadline = time.monotonic() + 30
        while content(s3, bucket, "out/loss") is None:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        # The same size within the same second: only the last round is sure to see it.
        (tmp_path / "out" / "loss").write_text("0.4")
        (tmp_path / "out" / "model").write_text("weights")
    finally:
        store.send_signal(signal.SIGTERM)
    assert store.wait(30) == 0
    assert content(s3, bucket, "out/loss") == b"0.4"
    assert content(s3, bucket, "out/model") == b"weights"


def test_what_others_have_stored_meanwhile_is_not_replaced_by_what_was_fetched(
    s3: Any, bucket: str, whole: Plan, tmp_path: Path
) -> None:
    """Workers and parameter servers of a run fetch its output, too, and end after the master has written a newer one."""
    for name in ("checkpoint", "touched", "nested/old"):
        s3.client.put_object(Bucket=bucket, Key=f"out/{name}", Body=b"step 7")
    assert start(whole, storage.FETCH).wait(30) == 0
    s3.client.put_object(Bucket=bucket, Key="out/checkpoint", Body=b"step 8")
    store = start(whole, storage.STORE, **{str(storage.STORE_EVERY_SECONDS): "1"})
    try:
        # Older than what is stored, but it is this task that wrote it last.
        (tmp_path / "out" / "touched").write_text("step 1")
        os.utime(tmp_path / "out" / "touched", (0, 0))
        (tmp_path / "out" / NAME).write_text("1")
        deadline = time.monotonic() + 30
        while content(s3, bucket, "out/touched") != b"step 1":
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        store.send_signal(signal.SIGTERM)
    assert store.wait(30) == 0
    assert content(s3, bucket, "out/checkpoint") == b"step 8"
    assert content(s3, bucket, "out/nested/old") == b"step 7"
    assert content(s3, bucket, f"out/{NAME}") == b"1"


def test_a_store_that_is_started_again_knows_what_was_changed_before(
    s3: Any, bucket: str, whole: Plan, tmp_path: Path
) -> None:
    assert start(whole, storage.FETCH).wait(30) == 0
    first = start(whole, storage.STORE)
    (tmp_path / "out" / "loss").write_text("0.5")
    first.kill()
    first.wait(30)
    second = start(whole, storage.STORE)
    listening(second.pid, signal.SIGTERM)
    second.send_signal(signal.SIGTERM)
    assert second.wait(30) == 0
    assert content(s3, bucket, "out/loss") == b"0.5"


@pytest.mark.kube  # its tries take half a minute
def test_what_cannot_be_stored_is_told_without_the_secret(whole: Plan, tmp_path: Path, s3: Any) -> None:
    (tmp_path / "out" / "loss").write_text("0.5")
    first, second = whole.mounts
    assert isinstance(second.source, S3Source)
    wrong = replace(second.source, bucket="no-such-bucket")
    broken = replace(whole, mounts=(first, replace(second, source=wrong)))
    store = start(broken, storage.STORE, **{str(storage.STORE_EVERY_SECONDS): "1"})
    assert store.stderr
    said = store.stderr.readline()
    store.send_signal(signal.SIGTERM)
    said += store.communicate(timeout=90)[1]
    assert store.returncode != 0
    assert "NoSuchBucket" in said
    assert s3.secret_key not in said
