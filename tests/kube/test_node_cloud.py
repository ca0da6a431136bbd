"""The Kubernetes cloud on a real node: it reports what containerd knows, and leaves nothing behind."""

from __future__ import annotations

import datetime as dt
import math
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from clusters.clouds.drivers.base import (
    CloudError,
    CodeFiles,
    ImageRef,
    RolePlan,
    RunRef,
    Sample,
    Samples,
    Session,
    TaskSeen,
)
from clusters.clouds.drivers.kubernetes import prometheus, sampling
from clusters.clouds.drivers.kubernetes.cloud import KubernetesCloud
from clusters.clouds.drivers.kubernetes.render import names
from clusters.frameworks import FRAMEWORKS
from clusters.machine.rates import QUANTITIES, step
from tests.kube import archives
from tests.kube.following import Following, cloud_of, grant, measuring, until_found
from tests.kube.node import Container, Node
from tests.kube.plans import plan, role, run_ref
from tests.running import eventually

pytestmark = [pytest.mark.kube, pytest.mark.node]

SERVE = "echo welcome >/tmp/index.html; httpd -p 8080 -h /tmp"
# Input and window sizes arrive on separate channels, in either order.
SIZE = "read word; until stty size | grep '40 100'; do sleep 0.1; done; exit 6"
UNTIL_TOLD = "until [ -e /tmp/go ]; do sleep 0.1; done"
BUSYBOX = ImageRef("busybox", "gpu-cloud/busybox:1", "", "")


@pytest.fixture
def cloud(node: Node) -> KubernetesCloud:
    node.import_image(archives.busybox())
    return cloud_of(node.plane, f"portal-{secrets.token_hex(4)}")


@pytest.fixture
def run() -> RunRef:
    return run_ref(f"line-{secrets.token_hex(4)}")


def shell(name: str, script: str, count: int = 1, **changes: object) -> RolePlan:
    return role(name, count, argv=("sh", "-c", script), **{"cpu_milli": 50, "memory_mb": 64, **changes})


@contextmanager
def launched(cloud: KubernetesCloud, run: RunRef, *roles: RolePlan, **more: Any) -> Iterator[Following]:
    """Launches a run and deletes it at the end, whatever happened."""
    with Following(cloud) as following:
        cloud.apply(plan(*roles, run=run, image=BUSYBOX, grace_seconds=5, **more))
        yield following
        cloud.delete(run)
        following.until(lambda: following.is_gone(run), 120)


def record(node: Node, task: TaskSeen) -> Container:
    """Returns containerd's record of the task's last start."""
    return [each for each in node.containers(task.uid) if each.name == "task"][-1]


def output(session: Session) -> tuple[int | None, bytes, bytes]:
    """Returns a command's exit code, stdout and stderr."""
    said = {"stdout": b"", "stderr": b""}
    for _ in range(1000):
        got = session.receive(60)
        if got:
            said[got.stream] += got.data
        else:
            break
    session.close()
    return session.exit_code, said["stdout"], said["stderr"]


def test_a_run_from_its_start_to_its_end(node: Node, cloud: KubernetesCloud, run: RunRef) -> None:
    master = names.address(run, "master", 0).split(":")[0]
    roles = (
        # Values shared by all tasks are stored in the run's owner, and the task's start combines both values.
        shell(
            "master",
            f"{SERVE}; for n in $(seq 2000); do echo line $n; done; {UNTIL_TOLD}; echo $WHO",
            env={"WHO": "$(ALL)/$(TASK_INDEX)"},
        ),
        shell("ps", "trap 'sleep 1; exit 0' TERM; while :; do sleep 0.1; done", restart="Always"),
        # All other tasks can reach a task by its name even before it is ready.
        shell("worker", f"until timeout 2 wget -q -O - http://{master}:8080; do sleep 0.2; done; sleep $TASK_INDEX", 2),
    )
    with launched(cloud, run, *roles, shared={"ALL": "done"}) as following:
        following.until(lambda: {task.phase for task in following.of(run)} >= {"Running"})
        following.until(lambda: len(following.of(run, "Succeeded")) == 2, 120)
        assert output(cloud.exec(run, "master", 0, ["touch", "/tmp/go"])) == (0, b"", b"")
        following.until(lambda: len(following.of(run, "Succeeded")) == 3, 120)
        lines = "".join(f"line {n}\n" for n in range(1, 2001)).encode() + b"done/0\n"

        # Pods of a run are cached for up to 1 s.
        assert eventually(lambda: cloud.log(run, "master", 0, attempt=0).complete, 60)
        whole = cloud.log(run, "master", 0, attempt=0)
        assert (whole.data, whole.offset, whole.complete) == (lines, len(lines), True)
        piece = cloud.log(run, "master", 0, attempt=0, offset=100, limit=50)
        assert (piece.data, piece.offset, piece.complete) == (lines[100:150], 150, False)
        assert cloud.log(run, "worker", 1, attempt=0).data.endswith(b"welcome\n")
        last = cloud.log(run, "master", 0, attempt=0, tail=9)
        # Only the end was read, from the start of a line, so its position in the whole log is unknown.
        assert (last.data, last.placed, last.complete) == (b"done/0\n", False, True)

        assert output(cloud.exec(run, "ps", 0, ["sh", "-c", "echo out; echo err >&2; exit 5"])) == (
            5,
            b"out\n",
            b"err\n",
        )
        assert output(cloud.exec(run, "ps", 0, ["nowhere"]))[0] == 127
        with pytest.raises(CloudError, match="does not run"):
            cloud.exec(run, "master", 0, ["true"])

        pods = {task.uid for task in following.of(run)}
        assert len(pods) == 4
    for uid in pods:
        task = following.tasks[uid]
        assert (task.node, task.attempt, task.estimated) == (node.name, 0, False)
        known = record(node, task)
        assert (task.started_at, task.finished_at) == (known.started, known.finished), task
        assert task.exit_code == known.exit_code
        assert task.scheduled_at
        assert task.scheduled_at <= known.started
    # Not even a sandbox runs; the kubelet later removes only records.
    assert node.pods_alive().isdisjoint(pods)
    assert cloud.capacity().nodes[0].gpus_free == 8


def test_copies_that_take_turns_run_two_at_a_time_by_what_containerd_has_written_down(
    node: Node, cloud: KubernetesCloud, run: RunRef
) -> None:
    # Long enough to be stored outside the pods. This image has no bash, hence `sh`.
    spec = SimpleNamespace(command=f"echo $TASK_INDEX${{TASK_COMMAND+?}}\n# {'x' * 60_000}", count=lambda _: 5)
    copies = FRAMEWORKS["parallel"]
    program = copies.launch(spec, "worker", {}, {}).argv[-1].replace(" bash ", " sh ")
    turns = shell("worker", program, 5, at_once=2)
    with launched(cloud, run, turns, shared=copies.shared(spec, {})) as following:
        following.until(lambda: len(following.of(run, "Succeeded")) == 5, 120)
        assert cloud.log(run, "worker", 3, attempt=0).data == b"3\n"
        tasks = following.of(run, "Succeeded")
        assert sorted(task.index for task in tasks) == [0, 1, 2, 3, 4]
        ran = [record(node, task) for task in tasks]
        assert max(sum(each.started <= one.started < each.finished for each in ran) for one in ran) <= 2


def test_a_program_that_came_with_the_manifest_is_where_commands_start(cloud: KubernetesCloud, run: RunRef) -> None:
    files = {"main.sh": "cat lib/x.y; echo $(HOME); touch new || echo kept\n", "lib/x.y": "two $(TASK_INDEX)\n"}
    with launched(cloud, run, shell("master", "pwd; sh main.sh 2>/dev/null"), code=CodeFiles(files)) as following:
        following.until(lambda: following.of(run, "Succeeded"), 120)
        assert eventually(lambda: cloud.log(run, "master", 0, attempt=0).complete, 60)
        assert cloud.log(run, "master", 0, attempt=0).data == b"/elearn/code\ntwo $(TASK_INDEX)\n\nkept\n"


def test_a_log_is_followed_while_the_program_writes(cloud: KubernetesCloud, run: RunRef) -> None:
    # It writes a line only after the test has read the one before.
    program = "for n in 1 2 3; do until [ -e /tmp/$n ]; do sleep 0.1; done; echo $n; done"
    with launched(cloud, run, shell("master", program)) as following:
        following.until(lambda: following.of(run, "Running"))
        read, asked = b"", 0
        for chunk in cloud.follow(run, "master", 0, attempt=0):
            read += chunk.data
            if read.count(b"\n") == asked < 3:
                asked += 1
                assert output(cloud.exec(run, "master", 0, ["touch", f"/tmp/{asked}"])) == (0, b"", b"")
        assert read == b"1\n2\n3\n"
        assert chunk.complete


def test_commands_read_what_they_are_sent(cloud: KubernetesCloud, run: RunRef) -> None:
    with launched(cloud, run, shell("master", "sleep 100")) as following:
        following.until(lambda: following.of(run, "Running"))
        session = cloud.exec(run, "master", 0, ["sh", "-c", "sort; exit 4"], stdin=True)
        session.send(b"b\na\n")
        session.end_input()
        assert output(session) == (4, b"a\nb\n", b"")
        terminal = cloud.exec(run, "master", 0, ["sh", "-c", SIZE], tty=True)
        terminal.resize(100, 40)
        terminal.send(b"go\r")
        code, said, _ = output(terminal)
        assert (code, said.split()[-2:]) == (6, [b"40", b"100"])


def test_failed_attempts_say_why(node: Node, cloud: KubernetesCloud, run: RunRef) -> None:
    greedy = "awk 'BEGIN { text = \"x\"; while (1) text = text text }'"
    roles = (shell("master", "echo out of ideas; exit 3"), shell("worker", greedy, retries=0))
    with launched(cloud, run, *roles) as following:
        following.until(lambda: len(following.of(run, "Failed")) == 3, 150)
        first, second, worker = following.of(run, "Failed")
        assert [(task.role, task.attempt) for task in (first, second, worker)] == [
            ("master", 0),
            ("master", 1),
            ("worker", 0),
        ]
        assert (first.reason, first.exit_code, first.log_tail) == ("Error", 3, "out of ideas\n")
        assert (worker.reason, worker.exit_code) == ("OOMKilled", 137)
        assert "64" in worker.message
        for task in (first, second, worker):
            known = record(node, task)
            assert (task.started_at, task.finished_at) == (known.started, known.finished), task
        assert cloud.log(run, "master", 0, attempt=1).data == b"out of ideas\n"


def test_a_program_that_does_not_listen_is_killed_after_its_grace(
    node: Node, cloud: KubernetesCloud, run: RunRef
) -> None:
    deaf = "trap '' TERM; echo deaf; while :; do sleep 0.1; done"
    with launched(cloud, run, shell("master", deaf)) as following:
        following.until(lambda: following.of(run, "Running"))
        # A container counts as running shortly before its program does.
        assert next(chunk.data for chunk in cloud.follow(run, "master", 0, attempt=0) if chunk.data) == b"deaf\n"
        asked = dt.datetime.now(dt.UTC)
    (task,) = following.of(run)
    known = record(node, task)
    assert (task.finished_at, task.exit_code) == (known.finished, known.exit_code)
    assert known.exit_code == 137
    # The grace period applies, not Kubernetes' default of 30 s.
    assert 4 < (known.finished - asked).total_seconds() < 30


def test_what_a_task_uses_is_what_its_kubelet_says(node: Node, cloud: KubernetesCloud, run: RunRef) -> None:
    """A program that keeps a core busy, beside one that sleeps. Without the optional right nothing is known, and pages say so."""
    burning = shell("master", "while :; do :; done", cpu_milli=500)
    with launched(cloud, run, burning, shell("worker", "sleep 1000")) as following:
        following.until(lambda: [task.phase for task in following.of(run)] == ["Running"] * 2)
        assert cloud.samples() == Samples(
            (), {"cpu": sampling.NOTHING, "gpu": f"{prometheus.UNSET} {sampling.NO_GPUS}"}
        )
        grant(node.plane, measuring())
        tasks = {task.role: task.uid for task in following.of(run)}

        def known() -> dict[str, Sample]:
            cloud._sampling._refused_until = 0
            return {each.uid: each for each in cloud.samples().items}

        first = until_found(lambda: found if (found := known()).keys() >= {*tasks.values()} else None)
        master = tasks["master"]
        later = until_found(lambda: found if (found := known())[master].at > first[master].at + 5 else None)
        busy, quiet = step(first[master], later[master]), step(first[tasks["worker"]], later[tasks["worker"]])
        named = dict(zip(QUANTITIES, busy.values, strict=True))
        # A loop takes a core at most, and others on this machine a part of it: the kubelet of this node enforces no CPU limits.
        assert 0.1 < named["cpu"] < 1.1
        assert 0 < named["memory"] < 64 << 20
        # The kubelet of this node counts no traffic of pods.
        assert math.isnan(named["received"])
        assert cloud.samples().notes["network"] == sampling.NO_TRAFFIC
        assert not quiet.values[2] > 0.05
