"""Input that is copied once to this machine for all runs that read the same, from a real S3 server."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from clusters.clouds.drivers.base import Mount, RunRef
from clusters.clouds.drivers.local.agent import gpus, machine
from clusters.clouds.drivers.local.agent.machine import Options
from clusters.clouds.drivers.local.agent.node import Node
from clusters.clouds.drivers.local.data import cache, storage
from datastores.listing import Listing
from tests.clusters.clouds.local.agents import PATIENCE, Agent, Store, role
from tests.clusters.clouds.local.test_storage import LISTING, serving

READS = "cat /elearn/input/a; ! { echo > /elearn/input/x; } 2>/dev/null"


def cached(store: Store, bucket: str = "data", prefix: str = "") -> Mount:
    return dataclasses.replace(store.input(bucket, prefix), cached=True)


def kept(agent: Agent) -> list[Path]:
    """The cached folders, least recently used first."""
    found = (agent.folder / "cloud" / "cache").glob("*/files")
    return sorted(found, key=lambda path: (path.parent / "size").stat().st_mtime)


def rewritten(store: Store, name: str, text: str) -> None:
    """Writes other content with the same size and time, which no listing can detect."""
    before = (store.folder / name).stat()
    (store.folder / name).write_text(text)
    os.utime(store.folder / name, ns=(before.st_atime_ns, before.st_mtime_ns))


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.as_user
def test_it_is_read_once_and_again_when_it_has_changed(agent: Agent, store: Store) -> None:
    others = kept(agent)
    store.put("data/in/a", "one\n")
    assert agent.says(READS, mounts=(cached(store, prefix="in"),)) == "one\n"
    rewritten(store, "data/in/a", "two\n")
    # A listing with the same keys and the same result finds the copy, so only the listing is read.
    assert agent.says(READS, mounts=(cached(store, prefix="in"),)) == "one\n"
    digests = [item.digest for item in agent.seen if getattr(item, "digest", "")]
    assert len(set(digests)) == 1
    store.put("data/in/a", "three\n")
    assert agent.says(READS, mounts=(cached(store, prefix="in"),)) == "three\n"
    assert [(path / "a").read_text() for path in kept(agent) if path not in others] == ["one\n", "three\n"]
    folded = dataclasses.replace(cached(store, prefix="in"), fold=1, folds=2)
    assert agent.says("cat /elearn/input/validation/a", mounts=(folded,)) == "three\n"


def test_who_has_not_the_keys_finds_nothing(agent: Agent, store: Store) -> None:
    store.put("data/a", "one\n")
    agent.says(READS, mounts=(cached(store),))
    source = dataclasses.replace(store.source("data"), secret_key="0" * 40)
    run = agent.apply(role(READS), mounts=(dataclasses.replace(cached(store), source=source),))
    assert "refused the access key" in agent.storage(run, "failed").message


@pytest.mark.as_user
def test_two_runs_at_once_make_it_once_and_what_was_broken_off_is_made_whole(agent: Agent, store: Store) -> None:
    others = kept(agent)
    store.put("data/a", "one\n")
    store.put("data/b", "x" * 30_000_000)
    first = agent.apply(role("cat /elearn/input/a; wc -c /elearn/input/b"), mounts=(cached(store),))
    place = agent.folder / "cloud" / "cache"
    until(lambda: any(place.glob("*/partial/*")))
    maker = agent.folder / "cloud" / "runs" / str(first.id) / "storage"
    os.kill(int((maker / "lock").read_text()), signal.SIGKILL)
    second = agent.apply(role("cat /elearn/input/a; wc -c /elearn/input/b"), mounts=(cached(store),))
    for run in (first, second):
        assert agent.ended(run).phase == "Succeeded"
        assert agent.output(run) == "one\n30000000 /elearn/input/b\n"
    assert len(kept(agent)) == len(others) + 1
    assert not any(place.glob("*/partial"))


def test_what_no_run_uses_goes_by_age_and_for_room(make_agent: Callable[..., Agent], store: Store) -> None:
    agent = make_agent()
    for name in ("old", "held", "young"):
        store.put(f"{name}/a", f"{name}\n")
    held = agent.apply(role("echo up; sleep 600; cat /elearn/input/a"), mounts=(cached(store, "held"),))
    agent.until_output(held, "up")
    for name in ("old", "young"):
        over(agent, agent.apply(role(READS), mounts=(cached(store, name),)))
    assert len(kept(agent)) == 3
    for path in kept(agent):
        if (path / "a").read_text() != "young\n":
            os.utime(path.parent / "size", (0, 0))
    over(agent, agent.apply(role("true")))
    until(lambda: [(path / "a").read_text() for path in kept(agent)] == ["held\n", "young\n"])
    # A copy in demand is kept before one used earlier.
    there = kept(agent)
    discarded: list[str] = []
    cache.sweep(str(there[0].parents[1]), lambda: {there[0].parent.name}, discarded.append, most=1 << 40, wanted=1)
    assert discarded == [str(there[1].parent)]


def over(agent: Agent, run: RunRef) -> None:
    agent.ended(run)
    agent.cloud.delete(run)
    agent.gone(run)


def test_what_does_not_fit_says_so(agent: Agent, store: Store) -> None:
    class Large(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            listing = LISTING.replace(b"<Size>6", b"<Size>1125899906842624")
            self.send_response(200)
            self.send_header("Content-Length", str(len(listing)))
            self.end_headers()
            self.wfile.write(listing)

    with serving(Large, "127.0.0.1") as server:
        source = dataclasses.replace(store.source("data"), endpoint=f"http://127.0.0.1:{server.server_port}")
        run = agent.apply(role(READS), mounts=(dataclasses.replace(cached(store), source=source),))
        assert "Input cannot be fetched: It has 1125899.9 GB, and " in agent.storage(run, "failed").message
        agent.cloud.delete(run)
        agent.gone(run)


def test_what_there_is_room_for_moves_nothing_out_and_what_is_there_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key" / "partial").mkdir(parents=True)
    (tmp_path / "key" / "partial" / "a").write_bytes(b"x" * 600_000)
    listing, said = Listing(), list[int]()
    listing.add("a", 1_000_000, 0)

    class Making(storage.Storage):
        def __init__(self) -> None:
            self.spec, self.folder, self.wake = {"cache_uid": None, "least_free": 0}, "", -1

        def say(self, state: str, message: str, *, durable: bool = False, **values: Any) -> None:
            said.append(values.get("wanted", said[-1] if said else 0))

        def list(self, mount: dict[str, Any]) -> Listing:
            return listing

    monkeypatch.setattr(storage.rclone, "fetch", lambda *args: args[4](400_000, 1_000_000))
    monkeypatch.setattr(cache, "free_bytes", lambda _: 300_000)
    with pytest.raises(storage.rclone.Failed):
        Making().make({}, str(tmp_path / "key"), listing)
    assert 380_000 < said[-1] < 420_000
    monkeypatch.setattr(cache, "free_bytes", lambda _: 500_000)
    said.clear()
    assert Making().make({}, str(tmp_path / "key"), listing)
    assert set(said) == {0}


def test_what_is_being_removed_is_not_removed_for_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, key in enumerate(("a", "b")):
        (tmp_path / "cache" / key / "files").mkdir(parents=True)
        (tmp_path / "cache" / key / "lock").touch()
        (tmp_path / "cache" / key / "size").write_text("10")
        os.utime(tmp_path / "cache" / key / "size", (time.time() - 100 + number,) * 2)
    go = threading.Event()
    monkeypatch.setattr(machine, "_remove_tree", lambda _: go.wait(PATIENCE))
    monkeypatch.setattr(cache, "free_bytes", lambda _: 0)

    async def sweep() -> list[list[str]]:
        node = Node(tmp_path, gpus.Gpus((), {}, {}, simulated=False), Options(free_disk_gb=0))
        there = []
        for _ in range(2):
            node.sweep_cache(5)
            there.append(os.listdir(node.cache))
        go.set()
        await asyncio.gather(*node.swept)
        node.sweep_cache(5)
        return [*there, os.listdir(node.cache)]

    assert asyncio.run(sweep()) == [["b"], ["b"], []]
