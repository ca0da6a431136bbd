"""Run data on a real node: the real rclone image between a real S3 server and tasks that end in every possible way."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import boto3
import pytest

from clusters.clouds.drivers.base import (
    CodeCommit,
    ImageRef,
    Mount,
    Plan,
    RunGone,
    RunRef,
    S3Source,
    Source,
    StorageSeen,
    TaskSeen,
    VolumeRef,
    VolumeSource,
)
from clusters.clouds.drivers.kubernetes.cloud import KubernetesCloud
from datastores.listing import listing_of
from portal.up import services
from tests import s3server
from tests.counted import Counted
from tests.gitserver import git_server
from tests.kube import images
from tests.kube.following import Following, cloud_of
from tests.kube.node import Node
from tests.kube.plans import plan, role, run_ref

pytestmark = [pytest.mark.kube, pytest.mark.node, pytest.mark.timeout(600), pytest.mark.images("rclone")]

# Contains what a task needs: bash and coreutils.
IMAGE = ImageRef("rclone", images.TAGS["rclone"], "", "")
GRACE = 3
FLAGS = Path(__file__).parents[2] / "docker" / "rclone" / "flags"


@dataclass(frozen=True)
class Store:
    """An S3 server that pods reach. It keeps each bucket as a folder in `folder`."""

    url: str
    folder: Path
    access_key: str
    secret_key: str
    client: Any

    def source(self, bucket: str, prefix: str) -> S3Source:
        return S3Source(self.url, bucket, prefix, self.access_key, self.secret_key)

    def content(self, bucket: str, key: str) -> str | None:
        found = {each["Key"] for each in self.client.list_objects_v2(Bucket=bucket).get("Contents", [])}
        return self.client.get_object(Bucket=bucket, Key=key)["Body"].read().decode() if key in found else None


@pytest.fixture(scope="module")
def store(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder = tmp_path_factory.mktemp("store")
    access, secret = "NODE" + secrets.token_hex(8).upper(), secrets.token_hex(20)
    server = s3server.s3(folder / "s3", services.free_port(), access, secret, node.gateway)
    client = boto3.client(
        "s3",
        endpoint_url=server.url,
        aws_access_key_id=access,
        aws_secret_access_key=secret,
        region_name="us-east-1",
    )
    with services.running([server], folder, os.environ):
        yield Store(server.url, folder / "s3", access, secret, client)


@pytest.fixture
def bucket(store: Store) -> str:
    name = f"test-{secrets.token_hex(6)}"
    store.client.create_bucket(Bucket=name)
    store.client.put_object(Bucket=name, Key="in/deep/word.txt", Body=b"hello")
    store.client.put_object(Bucket=name, Key="out/checkpoint", Body=b"step 7")
    return name


@pytest.fixture
def cloud(node: Node) -> KubernetesCloud:
    node.import_image(images.image("rclone"))
    return cloud_of(node.plane, f"portal-{secrets.token_hex(4)}")


@pytest.fixture
def run(node: Node) -> Iterator[RunRef]:
    run = run_ref(f"line-{secrets.token_hex(4)}")
    yield run
    node.plane.request("DELETE", f"/api/v1/namespaces/{run.namespace}")


def one_task(run: RunRef, program: str, *mounts: Mount) -> Plan:
    task = role("master", argv=("bash", "-c", program), cpu_milli=50, memory_mb=64, gpus=0, retries=0)
    return plan(task, run=run, image=IMAGE, mounts=mounts, grace_seconds=GRACE)


def with_data(run: RunRef, store: Store, bucket: str, program: str) -> Plan:
    return one_task(
        run,
        program,
        Mount("/elearn/input", True, store.source(bucket, "in")),
        Mount("/elearn/output", False, store.source(bucket, "out")),
    )


def until(happened: Callable[[], object], seconds: float = 120.0) -> None:
    """Polls for conditions without notification: objects in a bucket."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def ended(following: Following, run: RunRef) -> TaskSeen:
    following.until(lambda: following.of(run, "Succeeded") or following.of(run, "Failed"), 150)
    (task,) = following.of(run)
    return task


def gone(cloud: KubernetesCloud, following: Following, run: RunRef) -> RunGone:
    cloud.delete(run)
    following.until(lambda: following.is_gone(run), 240)
    found = following.is_gone(run)
    assert found
    return found


def test_input_is_there_and_output_is_stored_during_the_run_and_at_its_end(
    node: Node, cloud: KubernetesCloud, following: Following, run: RunRef, store: Store, bucket: str
) -> None:
    program = (
        "cat /elearn/input/deep/word.txt /elearn/output/checkpoint > /elearn/output/seen; "
        "echo 1 > /elearn/input/no 2>/dev/null && echo writable > /elearn/output/wrong; "
        "echo mine > /elearn/work/model; echo code > /elearn/work/code; touch -d 2020-01-01 /elearn/work/code; "
        "until [ -e /tmp/go ]; do sleep 0.1; done; echo step 8 > /elearn/output/checkpoint"
    )
    cloud.apply(with_data(run, store, bucket, program))
    following.until(lambda: following.of(run, "Running"), 120)
    until(lambda: store.content(bucket, "out/seen") == "hellostep 7")
    assert following.of(run, "Running")
    pods = node.plane.request("GET", f"/api/v1/namespaces/{run.namespace}/pods")
    assert store.secret_key not in str(pods)
    assert store.secret_key not in _arguments()
    session = cloud.exec(run, "master", 0, ["touch", "/tmp/go"])
    assert session.receive(10) is None
    session.close()
    assert ended(following, run).exit_code == 0
    assert store.content(bucket, "out/checkpoint") == "step 8\n"
    assert store.content(bucket, "out/wrong") is None
    # From its working directory, only what the task wrote itself.
    assert store.content(bucket, "out/work/master-0/model") == "mine\n"
    assert store.content(bucket, "out/work/master-0/code") is None
    assert following.storage(run)[-1] == "stored"
    assert gone(cloud, following, run).stored


@pytest.mark.parametrize(
    ("program", "code", "saved"),
    [
        ("trap 'echo step 9 > checkpoint; exit 4' TERM", 4, "step 9\n"),
        ("true", 143, "step 8\n"),
        ("trap '' TERM", 137, "step 8\n"),
    ],
    ids=["saves", "ends", "ignores"],
)
def test_a_run_that_is_stopped_has_its_output_stored(
    cloud: KubernetesCloud,
    following: Following,
    run: RunRef,
    store: Store,
    bucket: str,
    program: str,
    code: int,
    saved: str,
) -> None:
    body = f"cd /elearn/output; {program}; echo step 8 > checkpoint; echo ready; while :; do sleep 0.1; done"
    cloud.apply(with_data(run, store, bucket, body))
    following.until(lambda: following.of(run, "Running"), 120)
    until(lambda: cloud.log(run, "master", 0, attempt=0).data == b"ready\n")
    begun = time.monotonic()
    told = gone(cloud, following, run)
    # The task gets its grace period, not the two minutes reserved for storing.
    assert time.monotonic() - begun < GRACE + 90
    (task,) = following.of(run)
    assert (task.exit_code, told.stored) == (code, True)
    assert store.content(bucket, "out/checkpoint") == saved


@pytest.mark.parametrize(
    ("program", "reason", "code"),
    [
        ("kill -9 $BASHPID", "Error", 137),
        ("python() { awk 'BEGIN { text = \"x\"; while (1) text = text text }'; }; python", "OOMKilled", 137),
        ("exit 3", "Error", 3),
    ],
    ids=["killed", "out-of-memory", "fails"],
)
def test_what_a_failed_task_wrote_is_stored(
    cloud: KubernetesCloud,
    following: Following,
    run: RunRef,
    store: Store,
    bucket: str,
    program: str,
    reason: str,
    code: int,
) -> None:
    cloud.apply(with_data(run, store, bucket, f"echo step 8 > /elearn/output/checkpoint; {program}"))
    task = ended(following, run)
    assert (task.phase, task.reason, task.exit_code) == ("Failed", reason, code)
    assert store.content(bucket, "out/checkpoint") == "step 8\n"
    assert gone(cloud, following, run).stored


def test_trouble_with_storing_is_told_while_the_task_runs(
    cloud: KubernetesCloud, following: Following, run: RunRef, store: Store, bucket: str
) -> None:
    program = "until [ -e /tmp/go ]; do date >> /elearn/output/now; sleep 0.1; done"
    cloud.apply(with_data(run, store, bucket, program))
    following.until(lambda: following.of(run, "Running"), 120)
    until(lambda: store.content(bucket, "out/now"))
    assert "failed" not in following.storage(run)
    (store.folder / bucket).rename(store.folder / "away")
    following.until(lambda: following.storage(run)[-1] == "failed", 120)
    (store.folder / "away").rename(store.folder / bucket)
    following.until(lambda: following.storage(run)[-1] == "ready", 120)
    assert following.of(run, "Running")
    assert gone(cloud, following, run).stored


def test_output_that_cannot_be_stored_is_told_with_its_reason(
    cloud: KubernetesCloud, following: Following, run: RunRef, store: Store, bucket: str
) -> None:
    program = "echo step 8 > /elearn/output/checkpoint; until [ -e /tmp/go ]; do sleep 0.1; done"
    cloud.apply(with_data(run, store, bucket, program))
    following.until(lambda: following.of(run, "Running"), 120)
    # In one step, because something may be writing into it.
    (store.folder / bucket).rename(store.folder.parent / bucket)
    told = gone(cloud, following, run)
    assert not told.stored
    assert "NoSuchBucket" in told.message
    assert store.secret_key not in told.message


def test_input_comes_as_fast_as_by_the_same_rclone_beside_the_pod_and_is_not_billed(
    node: Node, cloud: KubernetesCloud, following: Following, run: RunRef, store: Store, bucket: str, tmp_path: Path
) -> None:
    """A lower CPU limit than the task's would slow the fetching container down many times. The test node enforces none, so the
    pod is read, too."""
    (store.folder / bucket / "in" / "deep" / "large").write_bytes(os.urandom(400 * 2**20))
    flags = (FLAGS.read_text().partition('FLAGS="')[2].partition('"')[0]).split()
    keys = {"ACCESS_KEY_ID": store.access_key, "SECRET_ACCESS_KEY": store.secret_key, "ENDPOINT": store.url}
    remote = {"TYPE": "s3", "PROVIDER": "Other", "REGION": "us-east-1", **keys}
    env = os.environ | {f"RCLONE_CONFIG_DATA_{name}": value for name, value in remote.items()}

    def beside(name: str) -> float:
        begun = time.monotonic()
        argv = [services.program("rclone"), "copy", f"data:{bucket}/in/", str(tmp_path / name), *flags]
        subprocess.run(argv, env=env, check=True)
        return time.monotonic() - begun

    beside("first")  # the server reads the file once for its hash
    before = beside("before")
    program = "stat -c %s /elearn/input/deep/large; sleep 1"
    task = role("master", argv=("bash", "-c", program), cpu_milli=1500, memory_mb=1024, gpus=1, retries=0)
    mount = Mount("/elearn/input", True, store.source(bucket, "in"))
    cloud.apply(plan(task, run=run, image=IMAGE, mounts=(mount,), grace_seconds=GRACE))
    seen = ended(following, run)
    (pod,) = node.plane.request("GET", f"/api/v1/namespaces/{run.namespace}/pods")["items"]
    (fetch,) = (each for each in pod["spec"]["initContainers"] if each["name"] == "fetch")
    (master,) = (each for each in pod["spec"]["containers"] if each["name"] == "task")
    assert fetch["resources"]["limits"]["cpu"] == master["resources"]["limits"]["cpu"]
    after = beside("after")
    containers = {each.name: each for each in node.containers(seen.uid)}
    inside = (containers["fetch"].finished_at - containers["fetch"].started_at) / 10**9
    print(f"400 MB: {inside:.1f} s in the pod, {before:.1f} and {after:.1f} s beside it")
    assert seen.exit_code == 0
    # One second more for the two listings by a freshly started container.
    assert inside < 1.3 * max(before, after) + 1
    assert seen.began_at == containers["task"].started
    assert seen.scheduled_at
    assert seen.scheduled_at <= containers["fetch"].started < seen.began_at


def test_input_that_cannot_be_fetched_is_told_with_its_reason(
    cloud: KubernetesCloud, following: Following, run: RunRef, store: Store
) -> None:
    mount = Mount("/elearn/input", True, store.source("no-such-bucket", ""))
    cloud.apply(one_task(run, "true", mount))
    task = ended(following, run)
    assert task.phase == "Failed"
    assert "The input could not be fetched" in task.message
    assert "directory not found" in task.message
    gone(cloud, following, run)


def test_a_cached_input_is_read_from_the_store_once_by_all_tasks_and_not_by_later_runs(
    node: Node, cloud: KubernetesCloud, following: Following, run: RunRef, store: Store, bucket: str
) -> None:
    """The volume is a folder of the node; a ReadWriteMany class would provide the same one on all nodes."""
    size, tasks = 30_000_000, 8
    bodies = {name: os.urandom(size // 2) for name in ("a", "deep/b")}
    for name, body in bodies.items():
        store.client.put_object(Bucket=bucket, Key=f"in/data/{name}", Body=body)
    contents = "\n".join(sorted(hashlib.sha256(body).hexdigest() for body in bodies.values()))
    source = store.source(bucket, "in/data")
    there = store.client.list_objects_v2(Bucket=bucket, Prefix="in/data/")["Contents"]
    rows = [
        (each["Key"].removeprefix("in/data/"), each["Size"], int(each["LastModified"].timestamp())) for each in there
    ]
    disk = Path("/var/tmp") / f"cache-{secrets.token_hex(4)}"  # the node has its own /tmp
    disk.mkdir()
    os.chown(disk, 1000, 1000)
    facts = {
        "capacity": {"storage": "20Gi"},
        "accessModes": ["ReadWriteMany"],
        "storageClassName": disk.name,
        "hostPath": {"path": str(disk)},
    }
    node.plane.request("POST", "/api/v1/persistentvolumes", {"metadata": {"name": disk.name}, "spec": facts})
    cloud._settings = replace(cloud._settings, cache_class=disk.name)
    program = "cd /elearn/input; find -L . -type f -exec sha256sum {} + | cut -c1-64 | sort; ls; "
    program += "(echo 1 > no) 2>/dev/null || echo not written"
    try:
        with Counted(store.url, node.gateway) as counted:
            mount = Mount("/elearn/input", True, replace(source, endpoint=counted.url), cached=True, disk_bytes=size)
            mount = replace(mount, version="digits@1", digest=listing_of(rows).digest)
            for number, count, most, folds in ((1, tasks, 1.05 * size, 0), (2, 1, 0.05 * size, 2)):
                counted.sent = 0
                reads = replace(mount, fold=min(1, folds), folds=folds)
                each = run_ref(run.namespace, number=number)
                argv = ("bash", "-c", program)
                master = role("master", count, argv=argv, cpu_milli=20, memory_mb=64, gpus=0, retries=0)
                cloud.apply(plan(master, run=each, image=IMAGE, mounts=(reads,), grace_seconds=GRACE))
                following.until(lambda each=each, count=count: len(following.of(each, "Succeeded")) == count, 240)
                said = {cloud.log(each, "master", index, attempt=0).data.decode() for index in range(count)}
                shown = "train\nvalidation\n" if folds else "a\ndeep\n"
                assert said == {f"{contents}\n{shown}not written\n"}
                read = next(seen for seen in reversed(following.told) if isinstance(seen, StorageSeen) and seen.digest)
                assert (read.files, read.bytes) == (2, size)
                gone(cloud, following, each)
                assert counted.sent < most, f"run {number} read {counted.sent} bytes"
    finally:
        shutil.rmtree(disk)


def test_a_commit_of_a_private_repository_is_fetched_by_a_pod_whose_task_has_no_token(
    node: Node, cloud: KubernetesCloud, following: Following, run: RunRef, tmp_path: Path
) -> None:
    token = secrets.token_hex(12)
    with git_server(tmp_path, f"reader:{token}", node.gateway) as server:
        repository = server.repository()
        commit = repository.commit({"train/run.sh": "pwd; cat data/word; touch no", "train/data/word": "hello\n"})
        repository.commit({"train/run.sh": "echo what came later"})
        task = role("master", argv=("bash", "run.sh"), cpu_milli=50, memory_mb=64, gpus=0, retries=0)
        code = CodeCommit(repository.url, commit, "train", "reader", token)
        cloud.apply(plan(task, run=run, image=IMAGE, code=code, grace_seconds=GRACE))
        assert ended(following, run).exit_code == 1
        said = cloud.log(run, "master", 0, attempt=0).data.decode()
        # What was printed to its two streams has no order between them.
        assert [line for line in said.splitlines() if "touch" not in line] == ["/elearn/code/train", "hello"]
        assert "Read-only file system" in said
        assert token not in str(node.plane.request("GET", f"/api/v1/namespaces/{run.namespace}/pods"))
        assert token not in _arguments()
        gone(cloud, following, run)
        # A refusal by the server is not retried.
        other = run_ref(run.namespace, number=4)
        cloud.apply(plan(task, run=other, image=IMAGE, code=replace(code, token="another"), grace_seconds=GRACE))
        following.until(lambda: "refused" in following.storage(other), 120)
        told = [each.message for each in following.told if isinstance(each, StorageSeen) and each.run_id == other.id]
        assert "refused the name and token" in told[-1]
        gone(cloud, following, other)


def test_a_volume_keeps_what_runs_write_each_in_its_folder(
    node: Node, cloud: KubernetesCloud, following: Following, run: RunRef, tmp_path: Path
) -> None:
    """The volume is a folder of the node; Kubernetes mounts it like any other volume."""
    disk = Path("/var/tmp") / f"volume-{secrets.token_hex(4)}"  # the node has its own /tmp
    disk.mkdir()
    os.chown(disk, 1000, 1000)
    name = disk.name
    facts = {
        "capacity": {"storage": "20Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": name,
        "hostPath": {"path": str(disk)},
    }
    node.plane.request("POST", "/api/v1/persistentvolumes", {"metadata": {"name": name}, "spec": facts})
    try:
        for number in (1, 2):
            each = run_ref(run.namespace, number=number)
            source = VolumeSource(
                VolumeRef(7, run.namespace, "demo", "scratch"), name, "20Gi", "ReadWriteOnce", f"mnist/{number}"
            )
            program = f"ls /elearn/output; echo {number} > /elearn/output/loss"
            cloud.apply(one_task(each, program, Mount("/elearn/output", False, source)))
            assert ended(following, each).exit_code == 0
            assert cloud.log(each, "master", 0, attempt=0).data == b""
            gone(cloud, following, each)
        assert sorted(str(path.relative_to(disk)) for path in disk.rglob("*") if path.is_file()) == [
            "mnist/1/loss",
            "mnist/2/loss",
        ]
        # The next run reads all of it.
        third = run_ref(run.namespace, number=3)
        whole: Source = VolumeSource(VolumeRef(7, run.namespace, "demo", "scratch"), name, "20Gi", "ReadWriteOnce")
        reader = "cat /elearn/input/mnist/*/loss; echo 3 > /elearn/input/no"
        cloud.apply(one_task(third, reader, Mount("/elearn/input", True, whole)))
        assert ended(following, third).exit_code == 1
        said = cloud.log(third, "master", 0, attempt=0).data
        # The streams are two pipes, which are read in random order.
        assert [line for line in said.splitlines() if line.isdigit()] == [b"1", b"2"]
        assert b"Read-only file system" in said
        gone(cloud, following, third)
    finally:
        shutil.rmtree(disk)


def _arguments() -> str:
    """Returns the arguments of every process on this machine, including those of the node."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_text(errors="replace"))
        except OSError:
            continue
    return "\n".join(found)
