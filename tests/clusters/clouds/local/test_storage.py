"""Data in a real S3 server: fetched before the start, stored during the run and at its end, however it ends."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from clusters.clouds.drivers.base import CODE, CodeFiles, LocalSource, Mount, NfsSource, RunGone, StorageSeen, TaskSeen
from clusters.clouds.drivers.local.data import nfs, rclone
from clusters.clouds.drivers.local.network import socks
from tests import ports
from tests.clusters.clouds.local.agents import PATIENCE, Agent, Store, bad_key, role


def stored(store: Store, name: str) -> str | None:
    path = store.folder / "results" / name
    return path.read_text() if path.is_file() else None


@pytest.mark.as_user
def test_input_is_fetched_and_output_is_stored(agent: Agent, store: Store) -> None:
    store.put("data/digits/a.txt", "one\n")
    store.put("data/digits/deep/b ü $(x).txt", "two\n")
    store.put("data/other/c.txt", "not mine\n")
    store.put("data/digits/.portal-trash/1/removed.txt", "what somebody removed\n")
    script = "cd /elearn/input; find . -type f | sort; cat a.txt; cd /elearn/output; mkdir d; echo 42 > 'd/an swer.txt'"
    run = agent.apply(role(script), mounts=(store.input("data", "digits"), store.output("results", "demo/1")))
    assert agent.ended(run).phase == "Succeeded"
    assert agent.output(run) == "./a.txt\n./deep/b ü $(x).txt\none\n"
    agent.storage(run, "stored")
    assert stored(store, "demo/1/d/an swer.txt") == "42\n"
    states = [item.state for item in agent.seen if hasattr(item, "state")]
    assert states[0] == "fetching"
    assert states[-2:] == ["storing", "stored"]
    agent.cloud.delete(run)
    assert agent.gone(run) == RunGone(run.id)
    assert sorted(os.listdir(agent.folder / "cloud" / "runs" / str(run.id))) == ["gone.json", "tasks"]


@pytest.mark.as_user
def test_a_program_that_came_with_the_manifest_is_where_commands_start(agent: Agent) -> None:
    files = {"main.sh": "cat lib/x.y | od -c; touch new || echo kept\n", "lib/x.y": "two\r\n"}
    run = agent.apply(role("pwd; sh main.sh 2>&1"), code=CodeFiles(files))
    assert agent.ended(run).phase == "Succeeded"
    first, *lines = agent.output(run).splitlines()
    assert first == CODE
    assert "t   w   o  \\r  \\n" in lines[0]
    assert lines[-1] == "kept"


def test_a_program_that_is_read_is_not_written_again_when_the_agent_is_started_again(agent: Agent) -> None:
    run = agent.apply(role("echo up; sleep 600"), code=CodeFiles({"a.py": "1"}))
    agent.until_output(run, "up")
    place = agent.folder / "cloud" / "runs" / str(run.id) / "code" / "a.py"
    before = place.stat().st_mtime_ns
    agent.signal(signal.SIGKILL)
    agent.start()
    assert agent.says("echo 1") == "1\n"
    assert place.stat().st_mtime_ns == before
    agent.cloud.delete(run)
    agent.gone(run)


def test_what_is_only_looked_at_may_be_empty_and_of_too_much_a_part_is_copied(agent: Agent, store: Store) -> None:
    def shown(folder: str) -> Mount:
        return Mount("/elearn/runs/train/1", True, store.source("results", folder), shown_gib=4 / 1024)

    run = agent.apply(role("ls -A /elearn/runs/train/1; echo over"), mounts=(shown("wrote/nothing"),))
    assert agent.ended(run).phase == "Succeeded"
    assert agent.output(run) == "over\n"
    assert not any(isinstance(item, StorageSeen) and item.warning for item in agent.seen)
    for name in ("a", "b"):
        store.upload("results", f"wrote/{name}", "x" * 3_000_000)
    run = agent.apply(role("cd /elearn/runs/train/1; ls -d ? | wc -l; cat NOT*; > x"), mounts=(shown("wrote"),))
    assert agent.ended(run).phase == "Failed"
    assert "There are more than 0.00390625 GiB in folder wrote of bucket results" in agent.output(run)
    assert "Read-only file system" in agent.output(run)
    assert not agent.output(run).startswith("2")  # not even half a file


@pytest.mark.as_user
def test_input_is_read_only(agent: Agent, store: Store) -> None:
    store.put("data/a.txt", "one\n")
    run = agent.apply(role("echo two > /elearn/input/a.txt"), mounts=(store.input("data"),))
    assert agent.ended(run).phase == "Failed"
    assert "Read-only file system" in agent.output(run)


@pytest.mark.as_user
def test_each_task_sees_its_part_and_all_see_the_fold_that_is_held_out(agent: Agent, store: Store) -> None:
    names = [f"deep/{number} ü.txt" for number in range(7)]
    for name in [*names, ".portal-trash/1/removed"]:
        store.put(f"data/digits/{name}", name)
    script = "cd /elearn/input; find . -type f | sort; ! echo > x"
    readers, server = role(script, count=2), role(script, name="ps")
    halves = dataclasses.replace(store.input("data", "digits"), parts=2)
    run = agent.apply(dataclasses.replace(readers, first_part=0), server, mounts=(halves,))
    assert agent.ended(run, "worker", 1).phase == agent.ended(run, "ps").phase == agent.ended(run).phase == "Succeeded"
    expected = [f"./{name}" for name in names]
    assert [agent.output(run, "worker", index).splitlines()[: 4 - index] for index in (0, 1)] == [
        expected[0::2], expected[1::2],
    ]  # fmt: skip
    assert not agent.output(run, "ps").startswith("./")

    folded = dataclasses.replace(halves, fold=2, folds=3)
    run = agent.apply(dataclasses.replace(readers, first_part=0), mounts=(folded,))
    assert agent.ended(run, "worker", 1).phase == agent.ended(run).phase == "Succeeded"
    held, rest = names[1::3], [name for name in names if name not in names[1::3]]
    assert agent.output(run, "worker", 1).splitlines()[:4] == [
        *(f"./train/{name}" for name in rest[1::2]), *(f"./validation/{name}" for name in held),
    ]  # fmt: skip
    alone = dataclasses.replace(store.input("data", "digits"), fold=7, folds=7)
    run = agent.apply(role(script), mounts=(alone,))
    assert agent.ended(run).phase == "Succeeded"
    assert agent.output(run).splitlines()[:7] == [
        *(f"./train/{name}" for name in names[:6]),
        f"./validation/{names[6]}",
    ]


@pytest.mark.as_user
def test_what_an_earlier_try_has_fetched_and_is_gone_by_now_is_not_divided(agent: Agent, store: Store) -> None:
    for number in range(4):
        store.put(f"data/{number}", "1")
    parts = dataclasses.replace(store.input("data"), fold=1, folds=2)
    run = agent.apply(role("cd /elearn/input; find . -type f | sort"), mounts=(parts, store.output("not-yet")))
    agent.storage(run, "failed")
    store.stop()
    (store.folder / "data" / "0").unlink()
    (store.folder / "not-yet").mkdir()
    store.start()
    assert agent.ended(run).phase == "Succeeded"
    assert agent.output(run).split() == ["./train/2", "./validation/1", "./validation/3"]


def test_an_input_that_cannot_be_divided_says_why_and_is_tried_again(agent: Agent, tmp_path: Path) -> None:
    # A path longer than the target of a link may be.
    at = os.open(tmp_path, os.O_RDONLY)
    for _ in range(21):
        os.mkdir("d" * 200, 0o755, dir_fd=at)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=at))
    divided = Mount("/elearn/input", True, LocalSource(str(tmp_path), str(tmp_path)), fold=1, folds=2)
    run = agent.apply(role("cd /elearn/input; find . -type l"), mounts=(divided,))
    assert agent.storage(run, "failed").message == "The input cannot be divided: File name too long. It is tried again."
    os.unlink("file", dir_fd=at)
    os.close(at)
    tmp_path.chmod(0o755)
    (tmp_path / "b").touch()
    assert agent.ended(run).phase == "Succeeded"
    assert agent.output(run).split() == ["./validation/b"]


def test_output_is_stored_while_the_task_runs_and_what_lay_there_is_fetched_first(agent: Agent, store: Store) -> None:
    store.put("results/demo/checkpoint", "7")
    script = "cat /elearn/output/checkpoint; echo 8 > /elearn/output/next; sleep 600"
    run = agent.apply(role(script), mounts=(store.output("results", "demo"),))
    agent.until_output(run, "7")
    assert _until(agent, lambda: stored(store, "demo/next")) == "8\n"
    agent.cloud.delete(run)
    agent.gone(run)


@pytest.mark.as_user
def test_output_is_stored_when_a_task_fails_or_is_stopped(agent: Agent, store: Store) -> None:
    mounts = (store.output("results", "x"),)
    failed = agent.apply(role("echo 1 > /elearn/output/failed; exit 1"), mounts=mounts)
    agent.ended(failed)
    agent.storage(failed, "stored")
    assert stored(store, "x/failed") == "1\n"
    script = "trap 'echo 2 > /elearn/output/stopped; exit 0' TERM; echo up; sleep 600 & wait"
    stopped = agent.apply(role(script), mounts=mounts)
    agent.until_output(stopped, "up")
    agent.cloud.delete(stopped)
    assert agent.gone(stopped).stored
    assert stored(store, "x/stopped") == "2\n"


def test_files_that_come_go_and_grow_are_stored_as_they_are_in_the_end(agent: Agent, store: Store) -> None:
    script = """
    cd /elearn/output; ln -s /etc/passwd link; mkfifo pipe; touch $'new\\nline'
    for i in $(seq 400); do echo $i >> events; echo $i > ckpt-$i; rm -f ckpt-$((i-2)); sleep 0.02; done
    """
    run = agent.apply(role(script), mounts=(store.output("results", "tb"),))
    assert agent.ended(run, seconds=120).phase == "Succeeded"
    agent.storage(run, "stored")
    events = stored(store, "tb/events")
    assert events is not None
    assert events.splitlines() == [str(number) for number in range(1, 401)]
    assert stored(store, "tb/ckpt-400") == "400\n"
    assert stored(store, "tb/link") is None


ODD = """
cd /elearn/output; mkdir -p d/e empty closed; echo 1 > d/e/x; touch $'new\\nline' $'tab\\t' closed/in 'full\u201bs'; mkfifo pipe
echo 2 > none; chmod 000 none closed; ln -s d/e/x link; ln -s /elearn/output/d/e folder; ln -s /etc/passwd out; ln -s . d/loop
echo 3 > ' names #1 [of] *all; "kinds"'
"""


@pytest.mark.as_user
@pytest.mark.parametrize(("ends", "phase"), [("exit 0", "Succeeded"), ("exit 3", "Failed")])
def test_whatever_lies_in_the_output_the_run_ends_as_its_program_and_the_rest_is_stored(
    agent: Agent, store: Store, ends: str, phase: str
) -> None:
    run = agent.apply(role(f"{ODD}\n{ends}"), mounts=(store.output("results", "odd"),))
    assert agent.ended(run).phase == phase
    warning = agent.storage(run, "stored").warning
    for name in ("d/e/x", "link", "folder/x", ' names #1 [of] *all; "kinds"'):
        assert stored(store, f"odd/{name}") is not None, name
    left = ("new\\nline", "tab\\t", "closed/", "full\u201bs", "pipe", "none", "empty/", "out", "d/loop")
    assert warning.startswith(f"{len(left)} things in the output were not stored: ")
    for name in left:
        assert f"{name} (" in warning
    agent.cloud.delete(run)
    assert agent.gone(run).stored


class Tiny(BaseHTTPRequestHandler):
    """A minimal S3 for rclone: every bucket has `in/both` and `in/both/child`, and a name with a backslash is refused
    like a wrong key."""

    def do_GET(self) -> None:
        asked = parse_qs(urlsplit(self.path).query)
        prefix = asked.get("prefix", [""])[0]
        keys = {"in/": ["in/both"], "in/both/": ["in/both/child"]}.get(prefix, [])
        below = "<CommonPrefixes><Prefix>in/both/</Prefix></CommonPrefixes>" if prefix == "in/" else ""
        files = "".join(f"<Contents><Key>{key}</Key><Size>1</Size>{WHEN}</Contents>" for key in keys)
        listing = f"<ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated>{files}{below}</ListBucketResult>"
        self.say(200, listing if "prefix" in asked else "1")

    def do_HEAD(self) -> None:
        self.say(404, "")

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        refusal = "<Error><Code>SignatureDoesNotMatch</Code><Message>No.</Message></Error>"
        self.say(403, refusal) if "%5C" in self.path else self.say(200, "")

    def say(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.send_header("ETag", '"c4ca4238a0b923820dcc509a6f75849b"')
        self.send_header("Last-Modified", "Sun, 22 Nov 2026 13:00:00 GMT")
        self.end_headers()
        self.wfile.write(text.encode())


WHEN = "<LastModified>2026-11-22T13:00:00.000Z</LastModified><ETag>&quot;c4ca4238a0b923820dcc509a6f75849b&quot;</ETag>"


def test_what_the_store_says_of_single_names_is_no_word_on_the_key(agent: Agent, store: Store) -> None:
    with serving(Tiny, "127.0.0.1") as server:
        source = dataclasses.replace(store.source("b", "in"), endpoint=f"http://127.0.0.1:{server.server_port}")
        run = agent.apply(role("true"), mounts=(Mount("/elearn/input", True, source),))
        said = agent.storage(run, "refused").message
        assert said.endswith(" needs a file and a folder of the same name.")
        agent.cloud.delete(run)
        assert agent.gone(run).stored

        output = Mount("/elearn/output", False, dataclasses.replace(source, prefix="out"))
        run = agent.apply(role("cd /elearn/output; echo -n 1 > plain; echo -n 1 > 'a\\b'"), mounts=(output,))
        assert agent.ended(run).phase == "Succeeded"
        warning = agent.storage(run, "stored").warning
        assert warning == (
            "1 thing in the output was not stored: a\\b (the store refuses its name: SignatureDoesNotMatch)."
        )


def test_input_that_cannot_be_fetched_says_why_and_is_tried_again(agent: Agent, store: Store) -> None:
    cases = (
        (store.input("nothing-here"), f"There is no bucket nothing-here at {store.url}."),
        (bad_key(store.input("data")), f"{store.url} refused the access key of the datastore for bucket data."),
        (dataclasses.replace(store.input("data"), source=_elsewhere(store)), "http://127.0.0.1:9 cannot be reached."),
    )
    for mount, words in cases:
        run = agent.apply(role("true"), mounts=(mount,))
        told = agent.storage(run, "failed")
        assert told.message == f"Input cannot be fetched: {words} It is tried again."
        task = agent.until(lambda run=run: agent.task(run))
        assert (task.phase, task.reason) == ("Pending", "FetchingInput")
        agent.cloud.delete(run)
        assert agent.gone(run).stored
    run = agent.apply(role("cat /elearn/input/x"), mounts=(store.input("late-bucket"),))
    agent.storage(run, "failed")
    store.upload("late-bucket", "x", "here\n", new=True)
    assert agent.ended(run).phase == "Succeeded"
    assert agent.output(run) == "here\n"


def test_a_folder_that_is_not_in_its_bucket_is_refused(agent: Agent, store: Store) -> None:
    run = agent.apply(role("true"), mounts=(store.input("data", "no/such"),))
    assert (
        agent.storage(run, "refused").message == "Input cannot be fetched: There is no folder no/such in bucket data."
    )
    agent.cloud.delete(run)
    assert agent.gone(run).stored


@pytest.mark.as_user
def test_input_without_a_file_is_told_at_once_and_in_the_log_and_stops_nothing(agent: Agent, store: Store) -> None:
    (agent.folder / "nothing").mkdir(exist_ok=True)
    here = Mount("/elearn/input", True, LocalSource(str(agent.folder), str(agent.folder / "nothing")))
    for mount, where in ((store.input("data"), f"bucket data at {store.url}"), (here, here.source.path)):
        run = agent.apply(role("ls /elearn/input; echo done"), mounts=(mount,))
        sentence = f"The input is empty: there is nothing in {where}."
        assert agent.ended(run).phase == "Succeeded"
        assert agent.output(run) == f"[{sentence}]\ndone\n"
        ours = [item for item in agent.seen if isinstance(item, (StorageSeen, TaskSeen)) and item.run_id == run.id]
        told = next(number for number, item in enumerate(ours) if getattr(item, "warning", "") == sentence)
        assert all(isinstance(item, StorageSeen) or item.phase == "Pending" for item in ours[:told])


@pytest.mark.as_user
def test_a_server_leads_rclone_nowhere_that_is_closed(agent: Agent, store: Store) -> None:
    """Neither by a redirect, nor if the server's own address is closed, which DNS may return only when the run starts."""

    class Secret(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", "6")
            self.end_headers()
            self.wfile.write(b"secret")

    class Strange(Secret):
        """An S3 server that lists one file and redirects its download to the other server."""

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            listing = self.path.startswith("/data?")
            self.send_response(200 if listing else 307)
            self.send_header("Content-Length", str(len(LISTING) if listing else 0))
            self.send_header("Location", f"http://127.0.0.3:{secret.server_port}/secret")
            self.end_headers()
            self.wfile.write(LISTING if listing else b"")

    asked: list[str] = []
    with serving(Secret, "127.0.0.3") as secret, serving(Strange, "127.0.0.1") as strange:
        for server in (strange, secret):
            endpoint = f"http://{server.server_address[0]}:{server.server_port}"
            source = dataclasses.replace(store.source("data"), endpoint=endpoint)
            run = agent.apply(role("true"), mounts=(dataclasses.replace(store.input("data"), source=source),))
            sentence = (
                f"{endpoint} leads to an address that is closed; an administrator can open private ones "
                "(PORTAL_OPEN_NETWORKS)."
            )
            assert agent.storage(run, "failed").message == f"Input cannot be fetched: {sentence} It is tried again."
            agent.cloud.delete(run)
            agent.gone(run)
    assert asked == []


LISTING = b"""<?xml version="1.0"?><ListBucketResult><Name>data</Name><KeyCount>1</KeyCount><IsTruncated>false</IsTruncated>
<Contents><Key>x</Key><Size>6</Size><LastModified>2026-11-22T13:00:00.000Z</LastModified><ETag>"d"</ETag></Contents>
</ListBucketResult>"""


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler], address: str) -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer((address, ports.free()), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_the_way_out_is_for_who_knows_its_password(store: Store) -> None:
    """Other programs on this machine can see its port, and not every machine can keep tasks from it."""
    with socks.proxy([], None) as url:
        address = "127.0.0.1", int(url.rpartition(":")[2])
        word = url.partition("rclone:")[2].partition("@")[0].encode()
        for said, answer in ((b"x" * 32, b"\5\2\1\1"), (word, b"\5\2\1\0")):
            with socket.create_connection(address) as client:
                client.sendall(b"\5\1\2" + b"\1\6rclone" + bytes([len(said)]) + said)
                client.settimeout(PATIENCE)
                assert client.recv(2) + client.recv(2) == answer
        with socket.create_connection(address) as client:
            client.sendall(b"\5\1\0")
            assert client.recv(2) == b"\5\xff"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


def test_waiting_for_data_holds_no_gpu(make_agent: Callable[..., Agent], store: Store) -> None:
    agent = make_agent("--gpus", "1")
    waiting = agent.apply(role("true", gpus=1), mounts=(store.input("nothing-here"),))
    agent.storage(waiting, "failed")
    assert agent.ended(agent.apply(role("true", gpus=1))).phase == "Succeeded"


def test_storage_that_goes_away_and_comes_back_loses_nothing(agent: Agent, store: Store) -> None:
    script = "cd /elearn/output; echo 1 > first; while ! test -e end; do sleep 0.1; done; echo 2 > second"
    run = agent.apply(role(script), mounts=(store.output("results", "x"),))
    _until(agent, lambda: stored(store, "x/first"))
    store.stop()
    output = agent.folder / "cloud" / "runs" / str(run.id) / "room" / "mounts" / "0"
    (output / "end").write_text("")
    agent.ended(run)
    agent.cloud.delete(run)
    told = agent.storage(run, "failed")
    assert told.message == f"Output cannot be stored: {store.url} cannot be reached. It is tried again."
    store.start()
    assert agent.gone(run) == RunGone(run.id)
    assert stored(store, "x/second") == "2\n"


def test_storage_that_stays_away_is_given_up_and_the_files_stay(make_agent: Callable[..., Agent], store: Store) -> None:
    agent = make_agent("--store-seconds", "1")
    script = "cd /elearn/output; echo up; while ! test -e now; do sleep 0.1; done; echo 1 > first; echo made; sleep 600"
    run = agent.apply(role(script), mounts=(store.output("results", "x"),))
    agent.until_output(run, "up")
    store.stop()
    # The file is written after the storage went away, so none of it was stored before.
    folder = (agent.folder / "cloud" / "runs" / str(run.id) / "room" / "mounts" / "0").resolve()
    (folder / "now").touch()
    agent.until_output(run, "made")
    agent.cloud.delete(run)
    gone = agent.gone(run)
    assert not gone.stored
    assert (
        gone.message == f"Output could not be stored: {store.url} cannot be reached. The files are still in {folder}."
    )
    assert (folder / "first").read_text() == "1\n"


@pytest.mark.as_user
def test_killed_processes_are_replaced_and_nothing_is_lost(agent: Agent, store: Store) -> None:
    store.put("data/a", "one\n")
    script = """
    cat /elearn/input/a; cd /elearn/output; echo 1 > first; while ! test -e end; do sleep 0.1; done; echo 2 > second
    """
    run = agent.apply(role(script), mounts=(store.input("data"), store.output("results", "x")))
    agent.running(run)
    folder = agent.folder / "cloud" / "runs" / str(run.id)
    agent.signal(signal.SIGKILL)
    os.kill(int((folder / "storage" / "lock").read_text()), signal.SIGKILL)
    (folder / "room" / "mounts" / "1" / "end").touch()
    agent.start()
    agent.ended(run)
    agent.cloud.delete(run)
    assert agent.gone(run).stored
    assert (stored(store, "x/first"), stored(store, "x/second")) == ("1\n", "2\n")


def test_stopping_the_portal_stores_the_output_first(make_agent: Callable[..., Agent], store: Store) -> None:
    agent = make_agent("--stop-tasks-on-term")
    script = "cat /elearn/output/mark; trap 'echo saved > /elearn/output/mark; exit 0' TERM; echo up; sleep 600 & wait"
    run = agent.apply(role(script), mounts=(store.output("results", "x"),))
    agent.until_output(run, "up")
    agent.signal(signal.SIGTERM)
    assert stored(store, "x/mark") == "saved\n"
    agent.start()
    agent.until_output(run, "saved\nup", attempt=1)


def test_no_secret_is_in_a_command_line_or_can_be_read_by_others(agent: Agent, store: Store) -> None:
    store.put("data/a", "one\n")
    run = agent.apply(role("env; echo up; sleep 600"), mounts=(store.input("data"), store.output("results")))
    assert store.secret_key not in agent.until_output(run, "\nup\n")
    modes = [mode for mode, text in _files(agent.folder / "cloud" / "runs" / str(run.id)) if store.secret_key in text]
    assert modes
    assert not [mode for mode in modes if mode & 0o077]
    agent.cloud.delete(run)
    agent.gone(run)
    agent.until_removed()
    assert not [text for _, text in _files(agent.folder / "cloud") if store.secret_key in text]


def test_nfs_without_a_mount_says_what_to_do(agent: Agent) -> None:
    mount = dataclasses.replace(Store(Path(), "", "", 1).input("x"), source=NfsSource("127.0.0.9", "/export/data"))
    run = agent.apply(role("true"), mounts=(mount,))
    told = agent.storage(run, "failed")
    assert told.message.startswith("Input cannot be fetched: 127.0.0.9:/export/data ")
    agent.cloud.delete(run)
    assert agent.gone(run).stored


def test_an_nfs_export_is_found_where_it_or_its_parent_is_mounted(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "36 35 0:50 / /mnt/my\\040data rw,relatime shared:1 - nfs4 nas:/export rw\n"
        "37 35 0:51 / /mnt/deep rw - nfs4 nas:/export/deep rw\n"
        "38 35 8:1 / / rw - ext4 /dev/sda1 rw\n"
    )
    assert nfs.mounted("nas", "/export/sets/a", str(table)) == "/mnt/my data/sets/a"
    assert nfs.mounted("nas", "/export/deep/b", str(table)) == "/mnt/deep/b"
    assert nfs.mounted("nas", "/export", str(table)) == "/mnt/my data"
    assert nfs.mounted("nas", "/exports", str(table)) is None
    assert nfs.mounted("other", "/export", str(table)) is None


def _elsewhere(store: Store) -> object:
    return dataclasses.replace(store.source("data"), endpoint="http://127.0.0.1:9")


def _files(folder: Path) -> Iterator[tuple[int, str]]:
    """Mode and text of every file. Files may vanish meanwhile."""
    for place, _, names in os.walk(folder):
        for path in (Path(place, name) for name in names):
            with suppress(FileNotFoundError):
                if path.is_file():
                    yield path.stat().st_mode, _written(path).decode(errors="replace")


def _written(path: Path) -> bytes:
    """The file without its holes: an appcode's disk is a file of many GB, of which some MB are written."""
    found, end = b"", 0
    with path.open("rb") as file, suppress(OSError):  # ENXIO: no data after `end`
        while True:
            begin = os.lseek(file.fileno(), end, os.SEEK_DATA)
            end = os.lseek(file.fileno(), begin, os.SEEK_HOLE)
            found += os.pread(file.fileno(), end - begin, begin)
    return found


def _until(agent: Agent, what: Callable[[], str | None]) -> str | None:
    """Polls for `what()`: the watch does not report output that is stored during a run."""
    deadline = time.monotonic() + PATIENCE
    # A file exists a moment before its content.
    while not (found := what()):
        assert time.monotonic() < deadline, agent.log()
        time.sleep(0.05)
    return found


def test_what_rclone_says_becomes_a_sentence_that_stays_the_same() -> None:
    mount = {"endpoint": "http://s3", "bucket": "b", "access_key": "K"}
    text = "a.txt: Failed to copy: operation error S3: PutObject, StatusCode: 500, RequestID: {0}, HostID: {0}, api error X: Y."
    said = [rclone.explain(mount, [text.format(number), "Attempt 1/1 failed"]) for number in range(2)]
    assert said == ["a.txt: Failed to copy: operation error S3: PutObject, StatusCode: 500, api error X: Y."] * 2
    assert rclone.explain(mount, ["open x: no space left on device"]) == "The disk of this machine is full."
    assert rclone.explain(mount, []) == "rclone failed without a word."
