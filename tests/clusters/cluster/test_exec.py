"""Commands inside tasks: over REST, and at a real terminal with `manage.py shell-into`."""

from __future__ import annotations

import base64
import json
import subprocess
import termios

import pytest
from django.core.management import CommandError, call_command

from clusters.cluster import actions
from clusters.runs.models import Run
from portal.models import Event
from tests.api.client import api_of
from tests.terminal import Terminal, database_environment, shell_into

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def cluster(loop, people, manifest):
    cluster = actions.create_cluster(manifest("demo", "echo up; exec sleep 600"), acting_user=people.bob)
    loop.until_phase(cluster, "Running")
    yield cluster
    actions.disable(cluster, acting_user=people.bob)
    loop.until_phase(cluster, "Stopped")


def path(role="master", index=0, run=1):
    return f"/appcodes/ops-demo/clusters/demo/runs/{run}/tasks/{role}/{index}/exec"


def frames(answer):
    """Returns the last frame, which has exit code or error, stdout and stderr."""
    lines = [json.loads(line) for line in b"".join(answer.streaming_content).splitlines()]
    answer.close()
    found = {"stdout": b"", "stderr": b""}
    for line in lines[:-1]:
        assert sorted(line) == ["data", "stream"]
        found[line["stream"]] += base64.b64decode(line["data"])
    return lines[-1], found["stdout"], found["stderr"]


class TestApi:
    def test_output_errors_and_exit_code(self, cluster, people):
        bob = api_of(people.bob)
        status, answer = bob.post(path(), {"argv": ["bash", "-c", "echo $PORTAL_ROLE; echo bad >&2; exit 3"]})
        assert (status, answer.headers["Content-Type"]) == (200, "application/x-ndjson")
        assert frames(answer) == ({"exit_code": 3}, b"master\n", b"bad\n")

    def test_more_than_ten_mib_pass_as_a_stream(self, cluster, people):
        status, answer = api_of(people.bob).post(path(), {"argv": ["head", "-c", str(12 << 20), "/dev/zero"]})
        longest = size = 0
        for line in answer.streaming_content:
            longest = max(longest, len(line))
            size += len(base64.b64decode(json.loads(line).get("data", "")))
        answer.close()
        assert (status, size) == (200, 12 << 20)
        assert longest < 100_000

    def test_input_terminal_and_what_cannot_be_started(self, cluster, people):
        bob = api_of(people.bob)
        assert frames(bob.post(path(), {"argv": ["rev"], "stdin": "ünï\n"})[1])[:2] == (
            {"exit_code": 0},
            "ïnü\n".encode(),
        )
        assert frames(bob.post(path(), {"argv": ["cat"]})[1])[:2] == ({"exit_code": 0}, b"")
        assert frames(bob.post(path(), {"argv": ["tty"], "tty": True})[1])[1].startswith(b"/dev/pts/")
        assert frames(bob.post(path(), {"argv": ["nonsense"]})[1])[0] == {"exit_code": 127}

    def test_it_is_ended_at_its_limits(self, cluster, people, monkeypatch):
        from clusters.cluster.api import exec as exec_api

        bob = api_of(people.bob)
        monkeypatch.setattr(exec_api, "MAX_OUTPUT", 1 << 20)
        last, output, _ = frames(bob.post(path(), {"argv": ["yes"]})[1])
        assert last == {"error": "Ended after 1 MiB of output."}
        assert len(output) == 1 << 20
        monkeypatch.setattr(exec_api, "SECONDS", 1)
        monkeypatch.setattr(exec_api, "HEARTBEAT_SECONDS", 0.3)
        last, output, _ = frames(bob.post(path(), {"argv": ["sleep", "60"]})[1])
        assert "Ended after" in last["error"]
        assert output == b""

    def test_who_may(self, cluster, people):
        body = {"argv": ["true"]}
        assert api_of(people.victor).post(path(), body)[0] == 403
        assert api_of(people.mallory).post(path(), body)[0] == 404
        status, answer = api_of(people.alice).post(path(), body)
        assert (status, frames(answer)[0]) == (200, {"exit_code": 0})
        assert Event.objects.filter(verb="task.exec").values_list("actor__username", flat=True).get() == "alice"

    def test_bad_input(self, cluster, people):
        bob = api_of(people.bob)
        for body, where in (
            ({}, "argv"),
            ({"argv": []}, "argv"),
            ({"argv": [""]}, "argv"),
            ({"argv": "ls"}, "argv"),
            ({"argv": ["ls"] * 300}, "argv"),
            ({"argv": ["x" * 20_000]}, "argv"),
            ({"argv": ["ls"], "env": {}}, "env"),
            ({"argv": ["ls"], "stdin": 1}, "stdin"),
        ):
            status, answer = bob.post(path(), body)
            assert (status, answer["errors"][0]["path"].split(".")[0]) == (422, where), body
        assert not Event.objects.filter(verb="task.exec").exists()

    def test_a_task_that_is_not_there_or_does_not_run(self, cluster, people, loop):
        bob = api_of(people.bob)
        assert [bob.post(path(*each), {"argv": ["true"]})[0] for each in [("worker", 0), ("master", 1), ("x", 0)]] == [
            404
        ] * 3
        assert bob.post(path(run=2), {"argv": ["true"]})[0] == 404
        actions.disable(cluster, acting_user=people.bob)
        loop.until_phase(cluster, "Stopped")
        status, answer = bob.post(path(), {"argv": ["true"]})
        assert (status, answer["detail"]) == (409, "master-0 of run 1 does not run (Failed).")

    def test_arguments_are_nowhere_to_be_found(self, cluster, people, caplog):
        bob = api_of(people.bob)
        secret = "sesame-4711"
        frames(bob.post(path(), {"argv": ["/bin/cat", "-", secret], "stdin": secret})[1])
        event = Event.objects.get(verb="task.exec")
        assert event.message == "“cat” with 2 arguments was run in master-0."
        assert secret not in str(vars(event))
        assert secret not in caplog.text

    def test_places_are_few(self, cluster, people, settings):
        settings.MAX_LOG_STREAMS = 1
        bob = api_of(people.bob)
        _, first = bob.post(path(), {"argv": ["sleep", "60"]})
        assert bob.post(path(), {"argv": ["true"]})[0] == 503
        first.close()
        assert frames(bob.post(path(), {"argv": ["true"]})[1])[0] == {"exit_code": 0}


class TestShellInto:
    def test_a_shell_at_a_terminal(self, cluster):
        terminal = Terminal("ops-demo/demo", "master", "0", columns=91, rows=33)
        terminal.until(b"$ ")
        terminal.type(b"stty size; echo role=$PORTAL_ROLE\r")
        assert b"33 91" in terminal.until(b"role=master\r\n")
        terminal.resize(120, 40)
        # A resize is not acknowledged, so poll for it.
        terminal.type(b"until stty size | grep -qx '40 120'; do sleep 0.1; done; echo resi''zed\r")
        terminal.until(b"resized\r\n")
        # Ctrl-C ends only the program inside.
        terminal.type(b"sh -c 'echo asl''eep; exec sleep 1000'; echo ended with $?\r")
        terminal.until(b"asleep")
        terminal.type(b"\x03")
        terminal.type(b"\recho still-here\r")
        terminal.until(b"\rstill-here\r\n")
        assert terminal.process.poll() is None
        terminal.type(b"exit 7\r")
        assert terminal.process.wait(60) == 7
        assert termios.tcgetattr(terminal.slave) == terminal.before
        event = Event.objects.get(verb="task.exec")
        assert event.message.startswith("“sh” with 2 arguments was run in master-0, by ")

    def test_the_terminal_is_put_right_when_it_is_ended(self, cluster):
        terminal = Terminal("ops-demo/demo", "master", "0")
        terminal.until(b"$ ")
        terminal.process.terminate()
        assert terminal.process.wait(60) == 143
        assert termios.tcgetattr(terminal.slave) == terminal.before

    def test_a_command_without_a_terminal(self, cluster):
        done = subprocess.run(
            shell_into("ops-demo/demo", "master", "0", "--", "sh", "-c", "tr a-z A-Z; echo err >&2; exit 9"),
            input=b"abc\n" * 1000, capture_output=True, env=database_environment(), timeout=120, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr) == (9, b"ABC\n" * 1000, b"err\n")

    def test_what_is_not_there(self, cluster):
        for argv, words in (
            (["ops-demo/nothing", "master", "0"], "There is no cluster “ops-demo/nothing”"),
            (["demo", "master", "0"], "name it as appcode/name"),
            (["ops-demo/demo", "worker", "0"], "Run 1 of ops-demo/demo has no task worker-0."),
            (["ops-demo/demo", "master", "one"], "invalid int value"),
        ):
            with pytest.raises(CommandError, match=words):
                call_command("shell-into", *argv)

    def test_a_task_that_has_ended(self, cluster, people, loop):
        actions.disable(cluster, acting_user=people.bob)
        loop.until_phase(cluster, "Stopped")
        assert Run.objects.get().gone
        with pytest.raises(CommandError, match=r"master-0 does not run\."):
            call_command("shell-into", "ops-demo/demo", "master", "0")
