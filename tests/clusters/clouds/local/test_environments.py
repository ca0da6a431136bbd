"""A saved environment on this machine: built once from a private index, read-only in tasks, never visible half-built."""

from __future__ import annotations

import base64
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import urllib3

from clusters.clouds.drivers.base import NOT_MADE, Environment, Plan, RolePlan, RunRef, TaskSeen
from clusters.clouds.drivers.local.network import outward, packages
from clusters.clouds.drivers.local.task.processes import is_locked
from clusters.frameworks.inside import install
from clusters.frameworks.programs import text
from portal.up.services import dies_with_parent, free_port
from tests.clusters.clouds.local.agents import PATIENCE, Agent, Agents, Home, role
from tests.index import PASSWORD, Index

INSTALL = text("install.py")
SAYS = "python -c 'import greeting; print(greeting.__file__, greeting.TEXT)'"


@pytest.fixture
def index() -> Iterator[Index]:
    with closing(Index()) as index:
        yield index


@pytest.fixture
def door(index: Index, home: Home) -> Iterator[Path]:
    """Socket of the process that gives tasks access to the index."""
    with door_to(index.url) as socket:
        yield socket


@contextmanager
def door_to(url: str) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="elearn-index-"))
    folder.chmod(0o711)
    socket = folder / "sock"
    argv = [sys.executable, "-m", "clusters.clouds.drivers.local.network.packages", str(socket)]
    process = subprocess.Popen(dies_with_parent(argv, "TERM"), env={**os.environ, "PORTAL_PACKAGE_INDEX": url})
    deadline = time.monotonic() + PATIENCE
    while not socket.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield socket
    process.terminate()
    process.wait()
    shutil.rmtree(folder)


@pytest.fixture
def agent(make_agent: Agents, door: Path) -> Agent:
    return make_agent("--packages", str(door))


def saved(*lines: str, script: str = "", name: str = "torch:1") -> Environment:
    lock = "\n".join(lines) + "\n"
    return Environment(name, f"{lock}{script}", lock, script, INSTALL)


def started(agent: Agent, environment: Environment, *roles: RolePlan) -> RunRef:
    plan: Plan = replace(agent.plan(*roles), environment=environment)
    agent.cloud.apply(plan)
    return plan.run


def said(agent: Agent, run: RunRef) -> str:
    end = agent.ended(run)
    assert end.phase == "Succeeded", (end, agent.output(run))
    return agent.output(run)


@pytest.mark.as_user
def test_two_runs_at_once_have_it_made_once_and_neither_can_change_it(agent: Agent, index: Index) -> None:
    torch = saved(index.add("greeting", "1.0", greeting="TEXT = 'hello'"))
    tampers = f"{SAYS}; touch $VIRTUAL_ENV/x 2>&1; ls {'/elearn/environments'} | wc -l"
    runs = [started(agent, torch, role(tampers)) for _ in range(2)]
    for run in runs:
        first, second, others = said(agent, run).splitlines()
        assert first.startswith("/elearn/environments/")
        assert first.endswith("greeting.py hello")
        assert "Read-only" in second
        assert others == "1"
    assert index.asked.count("/files/greeting-1.0-py3-none-any.whl") == 1
    waited = {item.reason for item in agent.seen if isinstance(item, TaskSeen) and item.run_id == runs[0].id}
    assert "MakingEnvironment" in waited
    # The next run reuses it. Its packages come before other versions in the image, whose packages stay visible.
    index.files.clear()
    assert "hello" in said(agent, started(agent, torch, role(f"{SAYS}; python -c 'import json'")))


def test_the_program_of_an_application_is_the_images_own(agent: Agent, index: Index) -> None:
    torch = saved(index.add("json", "1.0", **{"json/__init__": "raise SystemExit('broken')"}))
    asks = "which python; echo $PORTAL_ENVIRONMENT; python -c 'import json; print(json.__name__)'"
    plain = started(agent, torch, replace(role(asks), from_image=True))
    python, environment, name = said(agent, plain).splitlines()
    assert python == f"{agent.home.environment}/bin/python"
    assert environment.startswith("/elearn/environments/")
    assert name == "json"


def test_requirements_are_installed_once_over_what_the_image_has(agent: Agent, index: Index) -> None:
    """pip keeps the packages of the image (no index of the tests has six) and installs only what is missing."""
    index.add("leaf", "1.5", leaf="TEXT = 'leaf'")
    index.add("greeting", "1.0", ["six", "leaf>=1"], greeting="import leaf, six; TEXT = 'hello ' + leaf.TEXT")
    required = saved("# requirements", "greeting>=1", "six", name="of its requirements")
    runs = [started(agent, required, role(SAYS)) for _ in range(2)]
    for run in runs:
        assert said(agent, run).split()[1:] == ["hello", "leaf"]
    index.files.clear()
    assert "hello leaf" in said(agent, started(agent, required, role(SAYS)))
    assert index.asked.count("/files/greeting-1.0-py3-none-any.whl") == 1


def test_files_of_several_environments_are_there_once(agent: Agent, index: Index) -> None:
    shared = index.add("greeting", "1.0", greeting="TEXT = 'hello'")
    for other in (index.add("one", "1.0", one=""), index.add("two", "1.0", two="")):
        assert "hello" in said(agent, started(agent, saved(shared, other), role(SAYS)))
    made = list((agent.folder / "cloud" / "environments").glob("*/made/*/lib/*/site-packages/greeting.py"))
    assert len(made) == 2
    assert os.path.samefile(*made)


def test_a_script_runs_once_in_it_and_touches_nothing_else(agent: Agent, index: Index) -> None:
    greeting = index.add("greeting", "1.0", greeting="TEXT = 'hello'")
    assert "hello" in said(agent, started(agent, saved(greeting), role(SAYS)))
    script = (
        "ls /elearn/environments | wc -l > $VIRTUAL_ENV/seen\n"
        "site=$(dirname $(python -c 'import greeting; print(greeting.__file__)'))\n"
        "echo \"TEXT = 'changed'\" > $site/greeting.py"
    )
    changed = saved(greeting, script=script, name="torch:2")
    assert said(agent, started(agent, changed, role(f"cat $VIRTUAL_ENV/seen; {SAYS}"))).split()[::2] == ["1", "changed"]
    # The first environment has its own files, though both came from the same cache.
    assert "hello" in said(agent, started(agent, saved(greeting), role(SAYS)))


@pytest.mark.parametrize("wrong", ["another hash", "no such package", "no such requirement", "a script that fails"])
def test_one_that_cannot_be_made_starts_nothing_and_says_why_in_a_sentence(
    agent: Agent, index: Index, wrong: str
) -> None:
    line = index.add("greeting", "1.0", greeting="TEXT = 'hello'")
    asked, word = {
        "another hash": (saved(line[:-8] + "00000000"), "ash"),
        "no such package": (saved(line, line.replace("greeting==", "absent==")), "absent"),
        "no such requirement": (saved("# requirements", "absent>=2"), "Package absent>=2 was not found"),
        "a script that fails": (saved(line, script="echo no luck; exit 7"), "no luck"),
    }[wrong]
    run = started(agent, asked, role("echo started"))

    def why() -> str:
        task = agent.task(run)
        return task.message if task and task.reason == NOT_MADE else ""

    sentence, _, words = agent.until(why).partition("\n")
    assert word in sentence
    assert (
        "Save the environment anew" in sentence
        or "Correct the requirements" in sentence
        or "Mend the script" in sentence
    )
    if wrong == "no such requirement":
        assert "ERROR: No matching distribution found for absent>=2" in words
    assert "started" not in agent.output(run)
    agent.cloud.delete(run)
    agent.gone(run)


def test_a_silent_index_is_tried_again_and_the_page_says_when(make_agent: Agents, home: Home) -> None:
    """pip sees 502 for every page, and reports it as a package that is not there."""
    with door_to(f"http://127.0.0.1:{free_port()}/simple/") as door:
        agent = make_agent("--packages", str(door))
        run = started(agent, saved("# requirements", "absent>=2"), role("echo started"))

        def why() -> str:
            task = agent.task(run)
            assert task is None or task.reason != NOT_MADE
            return task.message if task and "Tries again" in task.message else ""

        first = agent.until(why)
        assert re.fullmatch(
            f"{re.escape(install.UNREACHED)} Tries again at [0-9:]{{8}} UTC, until [0-9:]{{8}} UTC.", first
        )
        agent.until(lambda: why() != first)
        agent.cloud.delete(run)
        agent.gone(run)


def test_what_was_left_half_made_is_made_anew(make_agent: Agents, door: Path, index: Index) -> None:
    agent = make_agent("--packages", str(door))
    torch = saved(index.add("greeting", "1.0", greeting="TEXT = 'hello'"), script="test -e /tmp/never || sleep 600")
    run = started(agent, torch, role(SAYS))
    folder = agent.folder / "cloud" / "runs" / str(run.id) / "environment" / "1"
    deadline = time.monotonic() + PATIENCE
    while not (folder / "status.json").exists():
        assert time.monotonic() < deadline, agent.log()
        time.sleep(0.02)
    agent.signal(signal.SIGKILL)
    shim = int((folder / "lock").read_text())
    os.kill(shim, signal.SIGKILL)
    agent.until_alone(folder)
    whole = list((agent.folder / "cloud" / "environments").glob("*/*.json"))
    assert whole == []
    agent.start()
    while not is_locked(folder):  # built again, from the first step
        assert time.monotonic() < deadline, agent.log()
        time.sleep(0.02)
    agent.cloud.delete(run)
    agent.gone(run)


def test_nobody_can_sign_an_address_that_no_page_had() -> None:
    """If the index has no password, a task knows everything else from which the key could be derived."""
    here, elsewhere = packages.Index("https://pypi.org/simple/"), packages.Index("https://pypi.org/simple/")
    assert here._sign("aHR0cDovLzE2OS4yNTQuMTY5LjI1NC94") != elsewhere._sign("aHR0cDovLzE2OS4yNTQuMTY5LjI1NC94")


def test_tasks_reach_the_index_without_its_password_and_nothing_beside_it(agent: Agent, index: Index) -> None:
    index.add("greeting", "1.0", greeting="TEXT = 'hello'")
    program = (
        "import os, urllib.request as r, urllib.error as e\n"
        "page = r.urlopen(os.environ['PIP_INDEX_URL'] + 'greeting/').read().decode(); print(page)\n"
        "link = page.split('href=\"')[1].split('#')[0]; base = os.environ['PIP_INDEX_URL'][:-8]\n"
        "print(len(r.urlopen(base + link).read()) > 300)\n"
        "head, name = link.rsplit('/', 1)\n"
        "forged = head[:-1] + '01'[head[-1] == '0']\n"
        "for path in (forged + '/' + name, head + '/other.whl', '/files/x/y', '/simple/../x', '/', '/simple/absent/'):\n"
        "    try: print(path[:9], r.urlopen(base + path).status)\n"
        "    except e.HTTPError as error: print(error.code, error.read())\n"
        "print(dict(os.environ), open('/proc/self/mountinfo').read())\n"
    )
    text = said(
        agent,
        started(agent, saved(), RolePlan("worker", 1, ("python", "-c", program), {}, 50, 64, 0, "", "OnFailure", 0)),
    )
    assert "greeting-1.0-py3-none-any.whl</a>" in text
    assert "\nTrue\n" in text
    assert text.count("\n404 b") == 6  # an id in mountinfo may be 404, too
    assert PASSWORD not in text
    assert PASSWORD not in agent.log()
    with pytest.raises(OSError):
        urlopen(outward.URL, timeout=5)


def test_the_index_reads_few_pages_at_one_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many long pages at once must not exhaust the memory that other installations need."""
    index, inside, go = packages.Index("http://127.0.0.1:9/simple/"), threading.Semaphore(0), threading.Event()

    def ask(*_: object) -> urllib3.HTTPResponse:
        inside.release()
        go.wait()
        return urllib3.HTTPResponse(status=404)

    monkeypatch.setattr(index, "ask", ask)
    threads = [threading.Thread(target=index.page, args=("x",)) for _ in range(packages.PAGES_AT_ONCE)]
    for thread in threads:
        thread.start()
        inside.acquire()
    assert not index._pages.acquire(blocking=False)
    go.set()
    for thread in threads:
        thread.join()


def test_a_file_on_a_closed_server_is_refused_at_once_and_with_what_helps(capfd: pytest.CaptureFixture[str]) -> None:
    """A private index may link to another private server. pip retries a 502 five times, and shows only an answer's reason."""
    index = packages.Index("http://127.0.0.1:9/simple/")
    coded = base64.urlsafe_b64encode(b"http://169.254.169.254/x.whl").decode().rstrip("=")
    with packages.Server(0, index) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            with pytest.raises(HTTPError) as refused:
                urlopen(
                    f"http://127.0.0.1:{server.server_address[1]}/files/{coded}.{index._sign(coded)}/x.whl", timeout=5
                )
        finally:
            server.shutdown()
    assert refused.value.code == 403
    assert "ask an administrator" in refused.value.reason
    assert "PORTAL_OPEN_NETWORKS" not in refused.value.reason
    assert "PORTAL_OPEN_NETWORKS" in capfd.readouterr().err, "the log is read by administrators"
    assert "169.254" not in refused.value.reason
