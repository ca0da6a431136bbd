"""Logs of real containers, and commands inside them, over a real kubelet."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusters.clouds.drivers import marks
from clusters.clouds.drivers.base import CloudError, ImageRef, LogChunk, RunRef, Session
from clusters.clouds.drivers.kubernetes.cloud import KubernetesCloud
from clusters.cluster import actions
from clusters.runs import reconcile
from portal.models import Event
from portal.up import services
from portal.up.services import Service
from tests.api.client import api_of
from tests.kube import archives
from tests.kube.following import Following, cloud_of, registered
from tests.kube.node import Node
from tests.kube.plans import plan, role, run_ref
from tests.running import pause
from tests.terminal import Terminal, database_environment

pytestmark = [pytest.mark.kube, pytest.mark.node, pytest.mark.timeout(600)]

IMAGE = ImageRef("shell", "docker.io/gpu-cloud/shell:1", "", "")


def shell() -> Path:
    """An image with busybox, coreutils' `timeout`, under which tasks run, and its libraries."""
    program = shutil.which("busybox")
    assert program
    applets = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()
    files: dict[str, bytes | str] = {f"bin/{name}": "busybox" for name in applets if name not in ("busybox", "timeout")}
    libraries = subprocess.run(["ldd", "/usr/bin/timeout"], capture_output=True, text=True, check=True).stdout
    for path in re.findall(r"/\S+(?= \()", libraries):
        files[path.lstrip("/")] = Path(path).read_bytes()
    files["bin/bash"] = b'#!/bin/sh\nexec sh "$@"\n'
    files["bin/busybox"], files["bin/timeout"] = Path(program).read_bytes(), Path("/usr/bin/timeout").read_bytes()
    return archives.write(IMAGE.container, files, ["/bin/sh"])


@pytest.fixture(scope="module")
def ready(node: Node) -> Node:
    node.import_image(shell())
    return node


@pytest.fixture
def followed(ready: Node) -> Iterator[Following]:
    with Following(cloud_of(ready.plane, f"logs-{secrets.token_hex(4)}")) as followed:
        yield followed


@pytest.fixture
def start(followed: Following) -> Iterator[Any]:
    """start("echo hi", restart="OnFailure") → the run, whose worker-0 runs or has run."""
    runs = []

    def make(script: str, **changes: Any) -> RunRef:
        ref = run_ref(f"logs-{secrets.token_hex(4)}")
        worker = role("worker", gpus=0, cpu_milli=50, memory_mb=64, argv=("sh", "-c", script), retries=0, **changes)
        followed.cloud.apply(plan(worker, run=ref, image=IMAGE, grace_seconds=1))
        runs.append(ref)
        followed.until(lambda: any(task.started_at for task in followed.of(ref)))
        return ref

    yield make
    for ref in runs:
        followed.cloud.delete(ref)
    followed.until(lambda: all(followed.is_gone(ref) for ref in runs))


def whole(cloud: KubernetesCloud, run: RunRef, **more: Any) -> LogChunk:
    return cloud.log(run, "worker", 0, attempt=0, limit=1 << 30, **more)


def until_ended(followed: Following, run: RunRef) -> None:
    followed.until(lambda: followed.of(run, "Succeeded") or followed.of(run, "Failed"))


def heard(session: Session, seconds: float = 60) -> tuple[int | None, bytes, bytes]:
    found = {"stdout": b"", "stderr": b""}
    end = time.monotonic() + seconds
    while session.exit_code is None:
        assert time.monotonic() < end, found
        if output := session.receive(1):
            found[output.stream] += output.data
    session.close()
    return session.exit_code, found["stdout"], found["stderr"]


LOCKSTEP = "for n in 1 2 3 4 5 6; do until [ -e /tmp/$n ]; do sleep 0.1; done; echo tick $n; done"
TICKS = b"".join(b"tick %d\n" % n for n in range(1, 7))
# Prints when Ctrl-C would reach it, and not the shell that is about to start it.
ASLEEP = b"sh -c 'echo asleep; exec sleep 1000'"


def until_size(rows: int, columns: int) -> bytes:
    """Returns shell code that waits for a window size, because nothing signals when a new size has arrived."""
    return b"until stty size | grep -qx '%d %d'; do sleep 0.1; done; " % (rows, columns)


class TestLogs:
    def test_it_is_read_from_anywhere(self, followed: Following, start: Any) -> None:
        cloud = followed.cloud
        run = start("i=0; while [ $i -lt 3000 ]; do echo line $i of a log; i=$((i+1)); done; printf end")
        until_ended(followed, run)
        text = b"".join(b"line %d of a log\n" % n for n in range(3000)) + b"end"
        deadline = time.monotonic() + 60
        while not (everything := whole(cloud, run)).complete:
            assert time.monotonic() < deadline
        assert everything.data == text
        assert everything.offset == len(text)
        tail = cloud.log(run, "worker", 0, attempt=0, limit=100, tail=50)
        assert (tail.data, tail.placed, tail.complete) == (b"end", False, True)
        everything_before = cloud.log(run, "worker", 0, attempt=0, limit=10**6, before=tail.first)
        assert (everything_before.data + tail.data, everything_before.line) == (text, 0)
        wide = cloud.log(run, "worker", 0, attempt=0, tail=10**6)
        assert (wide.data, wide.placed, wide.line) == (text, True, 0)
        at = cloud.log(run, "worker", 0, attempt=0, line=2990)
        assert (at.data.splitlines()[0], at.line, at.placed) == (b"line 2990 of a log", 2990, True)
        late = cloud.log(run, "worker", 0, attempt=0, since=marks.at(everything.marks, at.start))
        assert late.data.endswith(at.data)
        # Reading in pieces, with or without cursors, gives the same.
        for with_cursor in (True, False):
            found, chunk = b"", LogChunk(b"", 0, False)
            while not chunk.complete:
                cursor = chunk.cursor if with_cursor else ""
                chunk = cloud.log(run, "worker", 0, attempt=0, offset=chunk.offset, limit=9999, cursor=cursor)
                found += chunk.data
            assert found == text
        behind = cloud.log(run, "worker", 0, attempt=0, offset=10**9)
        assert (behind.data, behind.offset, behind.complete) == (b"", len(text), True)
        assert b"".join(chunk.data for chunk in cloud.follow(run, "worker", 0, attempt=0, offset=5)) == text[5:]

    def test_it_is_followed_by_one_connection_until_the_end(
        self, followed: Following, start: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from clusters.clouds.drivers.kubernetes import logs

        opened = []
        real = logs._open
        monkeypatch.setattr(logs, "_open", lambda *args, **more: (opened.append(more), real(*args, **more))[1])
        # It writes a line when the one before has been read.
        run = start(LOCKSTEP)
        text, asked = b"", 0
        for chunk in followed.cloud.follow(run, "worker", 0, attempt=0):
            text += chunk.data
            if text.count(b"\n") == asked < 6:
                asked += 1
                assert heard(followed.cloud.exec(run, "worker", 0, ["touch", f"/tmp/{asked}"])) == (0, b"", b"")
        assert text == TICKS
        # The connection, and the calls that detect the end.
        assert len(opened) <= 5

    def test_a_follower_of_a_silent_program_is_told_so(self, followed: Following, start: Any) -> None:
        run = start("echo once; sleep 300")
        began = time.monotonic()
        chunks = []
        for chunk in followed.cloud.follow(run, "worker", 0, attempt=0):
            chunks.append((time.monotonic() - began, chunk))
            if time.monotonic() - began > 12:
                break
        times = [at for at, _ in chunks]
        # The follower gets an empty chunk after 8 s; the rest allows for a busy machine.
        assert max(after - before for before, after in zip([0.0, *times], times, strict=False)) < 16
        assert b"".join(chunk.data for _, chunk in chunks) == b"once\n"

    def test_a_program_that_is_started_again_in_its_pod(self, followed: Following, start: Any) -> None:
        cloud = followed.cloud
        run = start("echo began; date +%s%N; sleep 2; echo over; exit 1", restart="Always")
        text = b""
        for chunk in cloud.follow(run, "worker", 0, attempt=0):
            text += chunk.data
            if text.count(b"began") == 2:
                break
        assert text.split()[0] == b"began"
        assert text.count(b"over") == 1
        # What it wrote before appears once.
        everything = whole(cloud, run)
        assert everything.data.count(b"began") == 2
        assert everything.data.startswith(text[: text.rindex(b"began")])
        assert not everything.complete

    def test_a_log_longer_than_the_node_keeps_goes_on(self, followed: Following, start: Any) -> None:
        """A kubelet starts a new file every 10 MiB, and its API reads only the newest. Followers miss nothing; readers with
        a cursor miss only what was discarded meanwhile."""
        cloud = followed.cloud
        run = start("head -c 12000000 /dev/zero | tr '\\0' x | fold -w 999; echo first; sleep 10; echo last; sleep 300")
        text, tail = 0, b""
        end = time.monotonic() + 150
        chunk = LogChunk(b"", 0, False)
        for chunk in cloud.follow(run, "worker", 0, attempt=0):
            text += len(chunk.data)
            tail = (tail + chunk.data)[-100:]
            if b"first" in tail:
                break
            assert time.monotonic() < end
        assert text > 12_000_000
        while b"last" not in chunk.data:
            assert time.monotonic() < end
            time.sleep(0.5)
            chunk = cloud.log(run, "worker", 0, attempt=0, offset=chunk.offset, cursor=chunk.cursor)
            assert len(chunk.data) < 1000

    def test_what_is_not_there(self, followed: Following, start: Any) -> None:
        run = start("echo here; sleep 300")
        cloud = followed.cloud
        for attempt, index in ((1, 0), (0, 7)):
            chunk = cloud.log(run, "worker", index, attempt=attempt)
            assert (chunk.data, chunk.complete, chunk.absent) == (b"", True, True)
        cloud.delete(run)
        followed.until(lambda: followed.is_gone(run))
        time.sleep(1.1)  # pods of a run are cached for up to 1 s
        assert whole(cloud, run).absent
        [chunk] = cloud.follow(run, "worker", 0, attempt=0)
        assert chunk.absent


class TestExec:
    @pytest.fixture
    def run(self, followed: Following, start: Any) -> RunRef:
        run: RunRef = start("echo up; sleep 300", env={"NAME": "value"})
        followed.until(lambda: followed.of(run, "Running"))
        return run

    def test_exit_codes_output_and_errors(self, followed: Following, run: RunRef) -> None:
        def inside(*argv: str) -> tuple[int | None, bytes, bytes]:
            return heard(followed.cloud.exec(run, "worker", 0, argv))

        assert inside("sh", "-c", "echo $NAME; echo bad >&2; exit 3") == (3, b"value\n", b"bad\n")
        assert inside("true") == (0, b"", b"")
        assert inside("sh", "-c", "kill -9 $$")[0] == 137
        code, output, errors = inside("no-such-program")
        assert (code, output) == (127, b"")
        assert b"no-such-program" in errors
        assert inside("cat") == (0, b"", b"")
        with pytest.raises(CloudError, match="worker-1 does not run"):
            followed.cloud.exec(run, "worker", 1, ["true"])

    def test_output_and_input_of_any_size(self, followed: Following, run: RunRef) -> None:
        session = followed.cloud.exec(run, "worker", 0, ["head", "-c", str(32 << 20), "/dev/zero"])
        size = longest = 0
        while session.exit_code is None:
            if output := session.receive(10):
                size += len(output.data)
                longest = max(longest, len(output.data))
        assert (session.exit_code, size) == (0, 32 << 20)
        assert longest < 1 << 20
        session = followed.cloud.exec(run, "worker", 0, ["sha256sum"], stdin=True)
        data = secrets.token_bytes(8 << 20)

        def send() -> None:
            session.send(data)
            session.end_input()

        sender = threading.Thread(target=send)
        sender.start()
        assert heard(session)[:2] == (0, hashlib.sha256(data).hexdigest().encode() + b"  -\n")
        sender.join()

    def test_a_terminal(self, followed: Following, run: RunRef) -> None:
        session = followed.cloud.exec(run, "worker", 0, ["sh"], tty=True)
        session.resize(117, 39)
        shown = b""

        def until(text: bytes) -> None:
            nonlocal shown
            end = time.monotonic() + 60
            while text not in shown:
                assert time.monotonic() < end, shown
                output = session.receive(0.5)
                shown += output.data if output else b""

        session.send(until_size(39, 117) + b"tty; echo ready\r")
        until(b"\nready\r\n")
        assert b"/dev/pts/" in shown
        session.send(ASLEEP + b"\r")
        until(b"\nasleep\r\n")
        session.send(b"\x03")
        session.send(b"echo again\r")
        until(b"\nagain\r\n")
        session.send(b"exit 7\r")
        assert heard(session)[0] == 7

    def test_a_session_ends_with_its_task(self, followed: Following, run: RunRef) -> None:
        session = followed.cloud.exec(run, "worker", 0, ["sleep", "1000"])
        followed.cloud.delete(run)
        with pytest.raises(CloudError):  # the exit code is lost with the container, or is that of a kill
            assert heard(session)[0] in (137, 143)
            raise CloudError


class Portal:
    """The portal's own programs beside this process, on the test database: a controller, and a worker with beat."""

    def __init__(self, people: Any, store: Any, bucket: str, folder: Path) -> None:
        self.people, self.store, self.bucket, self.folder = people, store, bucket, folder
        self._running: dict[str, Any] = {}

    def services(self) -> list[Service]:
        keys = {"ACCESS_KEY": self.store.access_key, "SECRET_KEY": self.store.secret_key}
        env = {
            **database_environment(),
            "PORTAL_LOGS_S3_URL": self.store.url,
            "PORTAL_LOGS_S3_BUCKET": self.bucket,
            **{f"PORTAL_LOGS_S3_{name}": value for name, value in keys.items()},
        }
        celery = (sys.executable, "-m", "celery", "--app", "portal", "worker")
        worker = (*celery, "--pool", "threads", "--concurrency", "8", "--without-gossip", "--without-mingle")
        return [
            Service("controller", (sys.executable, "manage.py", "controller"), env=env),
            Service("worker", worker, env=env | {"PORTAL_BEAT_SCHEDULE": str(self.folder / "beat")}),
        ]

    def __enter__(self) -> Portal:
        for service in self.services():
            self.start(service.name)
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._running):
            self.stop(name)

    def start(self, name: str) -> None:
        service = next(each for each in self.services() if each.name == name)
        self._running[name] = service, services.spawn(service, self.folder / f"{name}.log", os.environ)

    def stop(self, name: str) -> None:
        services.stop(*self._running.pop(name))

    def create(self, script: str, name: str = "demo", workers: int = 0, **spec: Any) -> Any:
        from clusters.cluster.actions import create_cluster
        from clusters.manifest.cluster import ClusterManifest

        roles = {"master": {"flavor": "small", "count": 1}, "worker": {"flavor": "small", "count": workers}}
        body = {"image": "shell", "command": script, "roles": roles, "retries": 0, **spec}
        document = {"kind": "cluster", "metadata": {"name": name, "appcode": "ops-demo"}, "spec": body}
        return create_cluster(ClusterManifest.model_validate(document), acting_user=self.people.bob)

    def until(self, happened: Any, seconds: float = 150.0) -> float:
        from clusters.runs.models import Run, Task

        began = time.monotonic()
        while not happened():
            told = [*Run.objects.values("phase", "message", "gone"), *Task.objects.values()]
            assert time.monotonic() < began + seconds, (told, (self.folder / "worker.log").read_text()[-3000:])
            time.sleep(pause(time.monotonic() - began))
        return time.monotonic() - began

    def until_running(self, cluster: Any) -> Any:
        self.until(lambda: self.run(cluster).phase == "Running" and not self.pending(cluster))
        return self.run(cluster)

    def until_gone(self, cluster: Any) -> Any:
        self.until(lambda: self.run(cluster).gone)
        return self.run(cluster)

    def until_kept(self, cluster: Any) -> Any:
        run = self.until_gone(cluster)
        self.until(lambda: not run.tasks.exclude(log_state="kept").exists())
        return run

    def pending(self, cluster: Any) -> bool:
        run = self.run(cluster)
        return run.tasks.filter(phase="Running").count() < sum(facts["count"] for facts in run.roles.values())

    def run(self, cluster: Any) -> Any:
        from clusters.runs.models import Run

        return Run.objects.get(current_of=cluster)

    def keys(self) -> list[str]:
        found = self.store.client.list_objects_v2(Bucket=self.bucket).get("Contents", ())
        return sorted(item["Key"] for item in found)


@pytest.fixture
def portal(ready: Node, people: Any, s3: Any, bucket: str, tmp_path: Path, settings: Any) -> Iterator[Portal]:
    from clusters.catalog.models import Flavor, Image
    from clusters.runs.models import Run

    Flavor.objects.create(name="small", title="Small", cpu_milli=50, memory_mb=64)
    Image.objects.create(name="shell", title="Shell", environment="", container=IMAGE.container)
    registered(ready.plane, "kubernetes", portal=f"portal-{secrets.token_hex(4)}", is_default=True)
    settings.LOGS_S3 = {
        **settings.LOGS_S3,
        "server": s3.url,
        "bucket": bucket,
        "access_key": s3.access_key,
        "secret": s3.secret_key,
    }
    portal = Portal(people, s3, bucket, tmp_path)
    with portal:
        yield portal
        for run in Run.objects.filter(gone=False):
            actions.disable(run.cluster, acting_user=people.bob)
        portal.until(lambda: not Run.objects.filter(gone=False).exists())


PATH = "/appcodes/ops-demo/clusters/demo/runs/1/tasks"


def touch(person: Any, path: str) -> None:
    """Creates a file in the master's container."""
    status, answer = person.post(f"{PATH}/master/0/exec", {"argv": ["touch", path]})
    assert status == 200
    frames = b"".join(answer.streaming_content).splitlines()
    answer.close()
    assert json.loads(frames[-1]) == {"exit_code": 0}


@pytest.mark.django_db(transaction=True)
class TestArchive:
    def test_a_log_outlives_its_pod(self, portal: Portal, client: Any, people: Any) -> None:
        bob = api_of(people.bob)
        cluster = portal.create(f"{LOCKSTEP}; echo ünï")
        portal.until(lambda: portal.run(cluster).tasks.filter(phase="Running").exists())
        # Follow the log while the task runs: it writes a line only after the test has read the one before.
        touch(bob, "/tmp/1")
        status, answer = bob.get(f"{PATH}/master/0/log?follow=true")
        assert status == 200
        read, asked = b"", 1
        for data in answer.streaming_content:
            read += data
            if read.count(b"\n") == asked < 6:
                asked += 1
                touch(bob, f"/tmp/{asked}")
        answer.close()
        text = TICKS + "ünï\n".encode()
        assert read == text
        run = portal.until_kept(cluster)
        task = run.tasks.get()
        assert (run.phase, task.log_state, task.log_size) == ("Succeeded", "kept", len(text))
        assert portal.keys() == [f"logs/kubernetes/{run.pk}/master-0-0.{part}" for part in ("log", "times")]
        # Read it after the pod is gone.
        assert bob.get(f"{PATH}/master/0/log")[1].content == text
        status, answer = bob.get(f"{PATH}/master/0/log?tail=1")
        assert (answer.content, answer.headers["Log-Offset"]) == ("ünï\n".encode(), "42")
        assert bob.get(f"{PATH}/master/0/log?offset=14")[1].content == text[14:]
        assert b"".join(bob.get(f"{PATH}/master/0/log?follow=1&offset=14")[1].streaming_content) == text[14:]
        client.force_login(people.victor)
        page = "/clusters/ops-demo/demo/logs"
        assert client.get(page).status_code == 200
        body = json.dumps({"master-0": None})
        [piece] = client.post(f"{page}/read", body, content_type="application/json").json()["pieces"]
        assert (piece["text"], piece["ended"], piece["note"]) == (text.decode(), True, "")
        assert b"".join(client.get(f"{page}/download?task=master-0").streaming_content) == text
        assert text.decode() in client.get(f"{page}?plain=1").content.decode()

    def test_what_is_written_while_a_run_is_disabled_is_there_too(self, portal: Portal, people: Any) -> None:
        cluster = portal.create(
            "trap 'echo asked to end; exit 3' TERM; echo up; while true; do sleep 0.1; done", workers=7
        )
        portal.until_running(cluster)
        bob = api_of(people.bob)
        # A container counts as running shortly before its program does.
        for n in range(7):
            portal.until(lambda n=n: bob.get(f"{PATH}/worker/{n}/log")[1].content == b"up\n")
        began = time.monotonic()
        actions.disable(cluster, acting_user=people.bob)
        portal.until_gone(cluster)
        seconds = time.monotonic() - began
        portal.until_kept(cluster)
        assert len(portal.keys()) == 2 * 8
        print(f"disable → gone, 8 logs kept: {seconds:.2f} s")
        for n in range(7):
            text = bob.get(f"{PATH}/worker/{n}/log")[1].content
            assert text.startswith(b"up\n")
            assert b"asked to end\n" in text

    def test_a_page_that_is_open_meanwhile_goes_on_from_where_it_was(
        self, portal: Portal, client: Any, people: Any
    ) -> None:
        client.force_login(people.bob)
        cluster = portal.create("i=0; while [ $i -lt 40 ]; do echo line $i; i=$((i+1)); sleep 0.1; done")
        page, text, position = "/clusters/ops-demo/demo/logs/read", "", None
        ended = False
        began = time.monotonic()
        while not ended:
            assert time.monotonic() < began + 150, text
            body = json.dumps({"master-0": position})
            answer = client.post(page, body, content_type="application/json").json()
            assert not answer["error"]
            for piece in answer["pieces"]:
                assert (piece["line"], piece["placed"]) == (text.count("\n"), True)
                text += piece["text"]
                position = {name: piece[name] for name in ("attempt", "offset", "cursor", "placed")}
                ended = piece["ended"]
            time.sleep(0.1)
        assert text == "".join(f"line {n}\n" for n in range(40))
        portal.until_gone(cluster)

    def test_an_archive_that_is_away_holds_nobody_up_and_misses_nothing(
        self, portal: Portal, people: Any, client: Any
    ) -> None:
        from clusters.logs import collect

        cluster = portal.create("trap 'echo asked to end; exit 3' TERM; echo up; while true; do sleep 0.1; done")
        portal.until_running(cluster)
        bob = api_of(people.bob)
        # A container counts as running shortly before its program does.
        portal.until(lambda: bob.get(f"{PATH}/master/0/log")[1].content == b"up\n")
        portal.store.client.delete_bucket(Bucket=portal.bucket)
        began = time.monotonic()
        actions.disable(cluster, acting_user=people.bob)
        run = portal.until_gone(cluster)
        assert time.monotonic() - began < collect.HOLD_SECONDS
        assert (run.phase, run.reason) == ("Stopped", "Disabled")
        portal.until(lambda: run.tasks.get().log_message)
        told = run.tasks.get().log_message
        assert "There is no such bucket" in told
        client.force_login(people.bob)
        body = json.dumps({"master-0": None})
        page = "/clusters/ops-demo/demo/logs"
        [piece] = client.post(f"{page}/read", body, content_type="application/json").json()["pieces"]
        assert (piece["text"], piece["ended"]) == ("", False)
        assert told in piece["note"]
        portal.store.client.create_bucket(Bucket=portal.bucket)
        portal.until(lambda: run.tasks.get().log_state == "kept")
        assert run.tasks.get().log_message == ""
        assert bob.get(f"{PATH}/master/0/log")[1].content.count(b"asked to end\n") == 1
        [piece] = client.post(f"{page}/read", body, content_type="application/json").json()["pieces"]
        assert ("asked to end\n" in piece["text"], piece["ended"], piece["note"]) == (True, True, "")

    def test_a_log_that_nobody_copied_in_time_is_lost_and_says_so(
        self, portal: Portal, people: Any, client: Any
    ) -> None:
        from clusters.logs import collect

        cluster = portal.create("echo up; exec sleep 600")
        portal.until_running(cluster)
        portal.stop("worker")
        began = time.monotonic()
        actions.disable(cluster, acting_user=people.bob)
        # As if a worker had ended the run and died before copying the log.
        run = portal.run(cluster)
        run.tasks.update(log_state="due")
        reconcile.reconcile(run.pk)
        portal.until_gone(cluster)
        # The pod was kept for a while, in vain.
        assert collect.HOLD_SECONDS - 1 < time.monotonic() - began < collect.HOLD_SECONDS + 60
        collect.copy_due()
        task = run.tasks.get()
        assert (task.log_state, task.log_message) == ("lost", "Its pod was gone before the log could be copied.")
        status, answer = api_of(people.bob).get(f"{PATH}/master/0/log")
        assert (status, answer["detail"]) == (404, task.log_message)
        client.force_login(people.bob)
        body = json.dumps({"master-0": None})
        page = "/clusters/ops-demo/demo/logs"
        [piece] = client.post(f"{page}/read", body, content_type="application/json").json()["pieces"]
        assert (piece["text"], piece["ended"], piece["note"]) == ("", True, task.log_message)
        assert client.get(f"{page}/download?task=master-0").status_code == 404
        portal.start("worker")

    def test_deleting_a_cluster_removes_its_logs(self, portal: Portal, people: Any) -> None:
        cluster = portal.create("echo short")
        portal.until_kept(cluster)
        other = portal.create("echo other", name="other")
        portal.until_kept(other)
        assert len(portal.keys()) == 2 * 2
        actions.delete_cluster(cluster, acting_user=people.bob)
        portal.until(lambda: len(portal.keys()) == 2)
        kept = portal.keys()
        assert all(key.startswith(f"logs/kubernetes/{portal.run(other).pk}/master-0-0.") for key in kept)

    def test_without_an_archive_the_page_says_so(self, portal: Portal, client: Any, people: Any, settings: Any) -> None:
        from clusters.runs.models import Task

        cluster = portal.create("echo short")
        portal.until_kept(cluster)
        Task.objects.update(log_state="", log_size=None)
        settings.LOGS_S3 = {**settings.LOGS_S3, "server": ""}
        time.sleep(1.1)  # pods of a run are cached for up to 1 s
        status, answer = api_of(people.bob).get(f"{PATH}/master/0/log")
        assert status == 404
        assert "last as long as their pods" in answer["detail"]


@pytest.mark.django_db(transaction=True)
class TestCommands:
    def test_by_rest_and_at_a_terminal(self, portal: Portal, people: Any, tmp_path: Path) -> None:
        cluster = portal.create("echo up; exec sleep 600", env={"NAME": "value"})
        portal.until_running(cluster)
        secret = "sesame-4711"
        bob = api_of(people.bob)
        argv = ["sh", "-c", "echo $NAME; cat; echo bad >&2; exit 3", secret]
        status, answer = bob.post(f"{PATH}/master/0/exec", {"argv": argv, "stdin": f"{secret}\n"})
        assert status == 200
        frames = [json.loads(line) for line in b"".join(answer.streaming_content).splitlines()]
        answer.close()
        said = {"stdout": b"", "stderr": b""}
        for frame in frames[:-1]:
            said[frame["stream"]] += base64.b64decode(frame["data"])
        assert frames[-1] == {"exit_code": 3}
        assert said == {"stdout": f"value\n{secret}\n".encode(), "stderr": b"bad\n"}
        assert api_of(people.victor).post(f"{PATH}/master/0/exec", {"argv": argv})[0] == 403
        assert api_of(people.mallory).post(f"{PATH}/master/0/exec", {"argv": argv})[0] == 404
        assert secret not in str(list(Event.objects.values()))
        assert not any(secret in log.read_text() for log in tmp_path.glob("*.log"))

        terminal = Terminal("ops-demo/demo", "master", "0", columns=91, rows=33)
        terminal.until(b"$ ", 120)
        terminal.type(until_size(33, 91) + b"echo name=$NAME\r")
        terminal.until(b"name=value\r\n", 60)
        terminal.resize(120, 40)
        terminal.type(until_size(40, 120) + ASLEEP + b"\r")
        terminal.until(b"\nasleep\r\n", 60)
        terminal.type(b"\x03")
        terminal.type(b"echo again\r")
        terminal.until(b"\nagain\r\n", 60)
        terminal.type(b"exit 7\r")
        assert terminal.process.wait(60) == 7
        assert termios.tcgetattr(terminal.slave) == terminal.before
