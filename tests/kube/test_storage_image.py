"""The programs of docker/rclone with the variables and arguments that pods give them, against a real S3 server."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusters.clouds.drivers import parts as parts_program
from clusters.clouds.drivers import store as store_program
from clusters.clouds.drivers.base import Mount, Plan, S3Source, expand
from clusters.clouds.drivers.kubernetes.render import names, storage
from clusters.clouds.drivers.kubernetes.settings import Settings
from clusters.clouds.drivers.kubernetes.watch.pod_status import storage_seen
from datastores import listing
from datastores.drivers.s3 import S3
from datastores.listing import listing_of
from portal.up.services import program
from tests import ports
from tests.counted import Counted
from tests.kube.plans import plan
from tests.running import listening

NAME = "-a name; #1 with 'signs' [and] *more ä"
INDEX = "the index"
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


def start(
    whole: Plan,
    container: str,
    index: str = "0",
    first_part: int = -1,
    task_index: Any = None,
    pod: str = "home",
    **changes: str,
) -> subprocess.Popen[str]:
    """Starts the program as the kubelet does in the task of this index: with its variables, including those from the
    Secret, and its arguments. `pod` is the folder that all its containers share."""
    name = names.secret_name(whole.run)
    (secret,) = (each for each in storage.manifests(whole, Settings()) if each["metadata"]["name"] == name)
    said = {"first_part": first_part, **({"task_index": task_index} if task_index else {})}
    parts = storage.pod_parts(whole, Settings(), **said)
    found = next(each for each in parts.init if each["name"] == container)
    env = {each["name"]: _value(each, {**secret["stringData"], INDEX: index}) for each in found["env"]}
    words = [changes.get(word, word) for word in found["args"][1:]]
    program_of = {storage.STORE: Path(store_program.__file__)}.get(container, PROGRAMS / found["args"][0])
    argv = [str(program_of), *(expand(word, {"TASK_INDEX": index}) for word in words)]
    # The image's programs other than rclone.
    own = Path(whole.mounts[0].mount_path).parent / "bin"
    own.mkdir(exist_ok=True)
    for name, module in (("parts", parts_program), ("listing", listing)):
        if not (own / name).exists():
            (own / name).symlink_to(str(module.__file__))
    path = f"{own}:{Path(program('rclone')).parent}:{os.environ['PATH']}"
    home = Path(whole.mounts[0].mount_path).parent / pod
    home.mkdir(exist_ok=True)
    env |= {"PATH": path, "HOME": str(home), "SAYS": str(home / "said"), "PYTHONPATH": str(PROGRAMS.parents[1])}
    return subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True)


def _value(variable: Mapping[str, Any], secret: Mapping[str, str]) -> str:
    if "value" in variable:
        return str(variable["value"]).replace("$$", "$")
    source = variable["valueFrom"]
    return secret[source["secretKeyRef"]["key"] if "secretKeyRef" in source else INDEX]


def content(s3: Any, bucket: str, key: str) -> bytes | None:
    if key not in {each["Key"] for each in s3.client.list_objects_v2(Bucket=bucket).get("Contents", [])}:
        return None
    body: bytes = s3.client.get_object(Bucket=bucket, Key=key)["Body"].read()
    return body


def test_input_and_what_was_stored_before_are_fetched(s3: Any, bucket: str, whole: Plan, tmp_path: Path) -> None:
    s3.client.put_object(Bucket=bucket, Key="in/a/digits.csv", Body=b"1,2,3")
    s3.client.put_object(Bucket=bucket, Key="out/checkpoint", Body=b"step 7")
    s3.client.put_object(Bucket=bucket, Key="other", Body=b"not ours")
    for folder in ("in", "out"):
        s3.client.put_object(Bucket=bucket, Key=f"{folder}/.portal-trash/1/removed", Body=b"what somebody removed")
    (tmp_path / "in" / "removed-since-an-earlier-try").write_bytes(b"1")
    fetch = start(whole, storage.FETCH)
    assert fetch.wait(30) == 0
    assert (tmp_path / "in" / "a" / "digits.csv").read_bytes() == b"1,2,3"
    assert (tmp_path / "out" / "checkpoint").read_bytes() == b"step 7"
    copied = (path for folder in ("in", "out") for path in (tmp_path / folder).rglob("*"))
    assert sorted(path.name for path in copied if path.is_file()) == ["checkpoint", "digits.csv"]


def test_each_task_fetches_its_part_and_all_fetch_the_fold_that_is_held_out(
    s3: Any, bucket: str, whole: Plan, tmp_path: Path
) -> None:
    names = [f"deep/{number} {NAME}" for number in range(7)]
    for name in [*names, ".portal-trash/1/removed"]:
        s3.client.put_object(Bucket=bucket, Key=f"in/{name}", Body=b"1")
    s3.client.put_object(Bucket=bucket, Key="out/checkpoint", Body=b"step 7")
    held, rest = names[1::3], [name for name in names if name not in names[1::3]]
    for first_part, index, fold, expected in (
        (1, "1", {}, names[2::3]),
        (-1, "1", {}, []),
        (1, "1", {"fold": 2, "folds": 3}, [*(f"train/{n}" for n in rest[2::3]), *(f"validation/{n}" for n in held)]),
        (-1, "0", {"fold": 2, "folds": 3}, [f"validation/{name}" for name in held]),
    ):
        shutil.rmtree(tmp_path / "in")
        mounts = (replace(whole.mounts[0], parts=3, **fold), whole.mounts[1])
        told = {"valueFrom": {"fieldRef": {"fieldPath": "a label"}}}
        variable = {"name": "TASK_INDEX", **told}
        # Files that an earlier try left when the bucket had other objects.
        for name in ["gone", *names]:
            for folder in ("train", "validation") if fold else ("",):
                left = tmp_path / "in" / folder / name
                left.parent.mkdir(parents=True, exist_ok=True)
                left.write_bytes(b"1")
        fetch = start(replace(whole, mounts=mounts), storage.FETCH, index, first_part=first_part, task_index=variable)
        assert fetch.wait(30) == 0
        found = (path for path in (tmp_path / "in").rglob("*") if path.is_file())
        assert sorted(str(path.relative_to(tmp_path / "in")) for path in found) == sorted(expected)
        assert (tmp_path / "out" / "checkpoint").read_bytes() == b"step 7"
        said = (tmp_path / "home" / "said").read_text()
        assert re.fullmatch(r"read [0-9a-f]{64} 7 7\n", said), "of all of it, whichever part it is"


def test_what_can_be_stored_is_and_the_rest_is_said(s3: Any, bucket: str, whole: Plan, tmp_path: Path) -> None:
    s3.client.put_object(Bucket=bucket, Key="out/a", Body=b"step 7")
    assert start(whole, storage.FETCH).wait(30) == 0
    s3.client.put_object(Bucket=bucket, Key="out/a", Body=b"step 8")
    out = tmp_path / "out"
    (out / "deep" / "empty").mkdir(parents=True)
    for name in ("a\nb", "tab\t", "none", f"deep/{NAME}"):
        (out / name).write_text("2")
    (out / "none").chmod(0)
    os.mkfifo(out / "pipe")
    (out / "link").symlink_to(out / "deep" / NAME)
    (out / "folder").symlink_to("deep")
    (out / "secret").symlink_to("/proc/self/environ")
    store = start(whole, storage.STORE)
    listening(store.pid, signal.SIGTERM)
    store.send_signal(signal.SIGTERM)
    assert store.wait(30) == 0
    for key in (f"deep/{NAME}", f"folder/{NAME}", "link"):
        assert content(s3, bucket, f"out/{key}") == b"2", key
    assert content(s3, bucket, "out/a") == b"step 8", "what others wrote is left alone"
    said = (tmp_path / "home" / "said").read_text()
    left = ("a\\nb", "tab\\t", "none", "deep/empty/", "pipe", "secret")
    assert said.startswith(f"{len(left)} things in the output were not stored: ")
    for name in left:
        assert f"{name} (" in said


def test_an_input_that_no_folder_can_hold_is_refused(s3: Any, bucket: str, whole: Plan, tmp_path: Path) -> None:
    s3.client.put_object(Bucket=bucket, Key="in/both/child", Body=b"1")
    # The state after the object of that name was copied first; the S3 server of the tests cannot store both.
    (tmp_path / "out" / "both").write_text("1")
    source = replace(whole.mounts[0].source, prefix="in")  # type: ignore[type-var]
    fetch = start(replace(whole, mounts=(whole.mounts[0], replace(whole.mounts[1], source=source))), storage.FETCH)
    _, said = fetch.communicate(timeout=60)
    assert fetch.returncode == storage.REFUSED
    assert "cannot be laid out as files" in said.splitlines()[-1]


def test_a_listing_has_the_names_that_the_store_has() -> None:
    named = {"a\u240ab": "a\nb", "\u201b\u240a": "\u240a", "\u2421\u201b": "\x7f\u201b", NAME: NAME}
    assert {name: listing.plain(name) for name in named} == named


def test_a_cached_input_is_read_once_by_all_pods_and_only_what_is_whole_is_found(
    s3: Any, bucket: str, whole: Plan, tmp_path: Path
) -> None:
    size = 5_000_000
    for name in ("a", f"deep/{NAME}"):
        s3.client.put_object(Bucket=bucket, Key=f"in/{name}", Body=os.urandom(size))
    assert start(whole, storage.FETCH).wait(30) == 0
    digest = (tmp_path / "home" / "said").read_text().split()[1]
    volume = tmp_path / "in"
    shutil.rmtree(volume)
    # The state after a killed copy: one partial file, and a file that has since been removed from the store.
    (volume / "partial").mkdir(parents=True)
    (volume / "partial" / "gone").write_bytes(b"1")
    with Counted(s3.url) as counted:
        source = replace(whole.mounts[0].source, endpoint=counted.url)  # type: ignore[type-var]
        first = replace(whole.mounts[0], source=source, cached=True, digest=digest, version="digits@1")
        shared = replace(whole, mounts=(first, whole.mounts[1]))
        pods = [start(shared, storage.FETCH, pod=f"pod{number}") for number in range(4)]
        assert [pod.wait(60) for pod in pods] == [0, 0, 0, 0]
        assert 2 * size < counted.sent < 2.05 * size
        files = volume / "files"
        assert sorted(str(path.relative_to(files)) for path in files.rglob("*") if path.is_file()) == [
            "a",
            f"deep/{NAME}",
        ]
        assert not (volume / "partial").exists()
        counted.sent = 0
        assert start(shared, storage.FETCH, pod="later").wait(30) == 0
        assert counted.sent < 0.05 * size
        assert (tmp_path / "later" / "said").read_text().startswith(f"read {digest} 2 {2 * size}\n")
        # The copy is exactly the listed state, or it fails.
        s3.client.put_object(Bucket=bucket, Key="in/b", Body=b"1")
        assert start(shared, storage.FETCH, pod="last").wait(60) == 77


def test_what_is_only_looked_at_may_be_empty_and_of_too_much_a_part_is_copied(
    s3: Any, bucket: str, whole: Plan, tmp_path: Path
) -> None:
    looked_at = plan(mounts=(whole.mounts[1], replace(whole.mounts[0], shown_gib=20)), run=whole.run)
    assert start(looked_at, storage.FETCH).wait(30) == 0
    assert (tmp_path / "home" / "said").read_text().split() == [str(tmp_path / "out")]
    for name in ("a", "b"):
        s3.client.put_object(Bucket=bucket, Key=f"in/{name}", Body=b"x" * 3_000_000)
    assert start(looked_at, storage.FETCH, **{"20Gi": "4Mi"}).wait(30) == 0
    assert len(list((tmp_path / "in").glob("?"))) < 2  # no partial file
    said = (tmp_path / "in" / "NOT-ALL-IS-COPIED.txt").read_text()
    assert said == f"There are more than 4MiB in {bucket}/in/; the rest is not copied.\n"


def test_input_without_a_file_is_told_and_output_without_one_is_not(
    s3: Any, bucket: str, whole: Plan, tmp_path: Path
) -> None:
    fetch = start(whole, storage.FETCH)
    assert fetch.wait(30) == 0
    said = (tmp_path / "home" / "said").read_text()
    assert said.splitlines() == [f"read {'0' * 64} 0 0", *(mount.mount_path for mount in whole.mounts)]
    # The status of the pod after the kubelet has read that message.
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
    assert (told.digest, told.files, told.bytes) == ("0" * 64, 0, 0)
    ended["state"]["terminated"]["message"] = said.splitlines()[2]
    assert storage_seen(made) == replace(told, warning="", digest="")


def test_an_input_that_is_not_the_version_that_was_asked_for_is_not_fetched(
    s3: Any, bucket: str, whole: Plan, tmp_path: Path
) -> None:
    s3.client.put_object(Bucket=bucket, Key="in/a", Body=b"1")
    assert start(whole, storage.FETCH).wait(30) == 0
    digest = (tmp_path / "home" / "said").read_text().split()[1]
    frozen = replace(whole.mounts[0], version="digits@1 $HOME", digest=digest)
    asked = replace(whole, mounts=(frozen, whole.mounts[1]))
    assert start(asked, storage.FETCH).wait(30) == 0
    (tmp_path / "in" / "a").unlink()
    s3.client.put_object(Bucket=bucket, Key="in/b", Body=b"1")
    fetch = start(asked, storage.FETCH)
    _, said = fetch.communicate(timeout=30)
    assert fetch.returncode == storage.REFUSED
    assert said == "The input is not what digits@1 $HOME was: files have been added, removed or written since.\n"
    assert not list((tmp_path / "in").iterdir())
    ended = {"name": storage.FETCH, "state": {"terminated": {"exitCode": fetch.returncode, "message": said}}}
    pod = {
        "metadata": {"labels": names.run_labels(Settings().portal, whole.run)},
        "spec": {"initContainers": storage.pod_parts(asked, Settings()).init, "containers": []},
        "status": {"phase": "Pending", "initContainerStatuses": [ended]},
    }
    told = storage_seen(pod)
    assert told
    assert (told.state, told.message) == ("refused", said.strip())


def test_the_portal_lists_what_a_task_lists(s3: Any, bucket: str, whole: Plan, tmp_path: Path) -> None:
    for name in ("a", f"deep/{NAME}", "deep/%2F+"):
        s3.client.put_object(Bucket=bucket, Key=f"in/{name}", Body=b"123")
    assert start(whole, storage.FETCH).wait(30) == 0
    said = (tmp_path / "home" / "said").read_text().splitlines()[0]
    driver = S3(
        server=s3.url, bucket=bucket, prefix="in", access_key=s3.access_key, secret=s3.secret_key, region="us-east-1"
    )
    entries = list(driver.walk(""))
    found = listing_of((each.path, each.size, int(each.modified.timestamp())) for each in entries if each.modified)
    assert said == f"read {found.words}"
    assert found.files == 3


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
        # Same size and same second: only the last upload is sure to notice the change.
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
    """Workers and parameter servers of a run also fetch its output, and end after the master has written a newer one."""
    for name in ("checkpoint", "touched", "nested/old"):
        s3.client.put_object(Bucket=bucket, Key=f"out/{name}", Body=b"step 7")
    assert start(whole, storage.FETCH).wait(30) == 0
    s3.client.put_object(Bucket=bucket, Key="out/checkpoint", Body=b"step 8")
    store = start(whole, storage.STORE, **{str(storage.STORE_EVERY_SECONDS): "1"})
    try:
        # Older than the stored object, but this task wrote it last.
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


def test_a_store_that_was_told_before_it_listened_ends_all_the_same(
    s3: Any, bucket: str, whole: Plan, tmp_path: Path
) -> None:
    """A one-second task ends before Python has started, and process 1 of a container does not get a signal without a
    handler."""
    assert start(whole, storage.FETCH).wait(30) == 0
    (tmp_path / "out" / "loss").write_text("0.5")
    (tmp_path / "home" / "ended").touch()
    assert start(whole, storage.STORE).wait(30) == 0
    assert content(s3, bucket, "out/loss") == b"0.5"


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


@pytest.mark.parametrize(
    ("wrong", "tries", "left", "again"),
    [
        ("NoSuchBucket: there is none", 4, 100, True),
        ("NoSuchBucket: there is none", 5, 100, False),
        ("dial tcp 10.0.0.1:9000: connect: connection refused", 20, 36, True),
        ("https response error StatusCode: 503, RequestID: 1", 20, 36, True),
        ("dial tcp 10.0.0.1:9000: i/o timeout", 20, 35, False),
    ],
)
def test_a_store_that_is_away_is_waited_for_and_one_that_says_no_is_not(
    wrong: str, tries: int, left: float, again: bool
) -> None:
    """While its machine restarts, the portal's storage is unreachable and comes back; a deleted bucket does not."""
    assert store_program.is_tried_again(wrong, tries, left) is again
    assert f"AWAY='{store_program.AWAY.pattern}'" in (PROGRAMS / "fetch").read_text()


def test_an_input_is_listed_again_when_the_store_is_back(whole: Plan, tmp_path: Path, s3: Any, bucket: str) -> None:
    s3.client.put_object(Bucket=bucket, Key="in/a", Body=b"1")
    first, second = whole.mounts
    assert isinstance(first.source, S3Source)
    port, errors = ports.free(), tmp_path / "home" / "errors"
    away = replace(first, source=replace(first.source, endpoint=f"http://127.0.0.1:{port}"))
    fetch = start(replace(whole, mounts=(away, second)), storage.FETCH)
    deadline = time.monotonic() + 60
    while not errors.exists() or "connection refused" not in errors.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    with Counted(s3.url, port=port):
        assert fetch.wait(60) == 0
    assert (tmp_path / "in" / "a").read_text() == "1"


@pytest.mark.kube  # its retries take half a minute
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
