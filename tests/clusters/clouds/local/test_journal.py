"""News keep their numbers across restarts, and a position that could be wrong has expired."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from clusters.clouds.drivers.base import RunGone, StorageSeen, TaskSeen, WatchExpired
from clusters.clouds.drivers.local import protocol
from clusters.clouds.drivers.local.agent import agent, gpus
from clusters.clouds.drivers.local.agent.journal import Journal
from clusters.clouds.drivers.local.agent.machine import Options
from clusters.clouds.drivers.local.agent.node import Node

NEWS = [TaskSeen(1, "worker", 0, 0, "u", "Pending", gpus=("0",)), StorageSeen(1, "ready"), RunGone(1, False, "§ why\n")]


def test_news_survives_a_restart_with_its_numbers(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    start = journal.position
    journal.append(list(NEWS[:1]))
    middle = journal.position
    journal.append(list(NEWS[1:]))
    again = Journal(tmp_path / "journal")
    assert again.position == journal.position
    assert list(again.since(start).items) == NEWS
    assert list(again.since(middle).items) == NEWS[1:]
    assert again.since(again.position).items == ()


def test_half_a_line_was_never_told(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.append(list(NEWS))
    with open(tmp_path / "journal", "ab") as file:
        file.write(b'{"kind":"gone","run_')
    again = Journal(tmp_path / "journal")
    again.append([RunGone(2)])
    assert [item.run_id for item in Journal(tmp_path / "journal").since(journal.position).items] == [2]


def test_old_news_is_forgotten_and_its_positions_expire(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", keep=10)
    start = journal.position
    for number in range(35):
        journal.append([RunGone(number)])
    assert len((tmp_path / "journal").read_bytes().splitlines()) <= 21
    with pytest.raises(WatchExpired):
        journal.since(start)
    oldest = f"{journal.name}.{journal.last - 10}"
    for each in (journal, Journal(tmp_path / "journal", keep=10)):
        assert [item.run_id for item in each.since(oldest).items] == list(range(25, 35))


def test_after_a_restart_of_the_machine_a_new_journal_begins(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.append(list(NEWS))
    head, *rest = (tmp_path / "journal").read_bytes().splitlines(keepends=True)
    (tmp_path / "journal").write_bytes(
        json.dumps(json.loads(head) | {"boot": "another"}).encode() + b"\n" + b"".join(rest)
    )
    again = Journal(tmp_path / "journal")
    assert again.since(again.position).items == ()
    with pytest.raises(WatchExpired):
        again.since(journal.position)


def test_a_watch_says_when_nothing_follows_some_news(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The portal polls free GPUs at this empty batch; waiting for the next heartbeat would delay runs in the queue.
    monkeypatch.setattr(agent, "HEARTBEAT", 3600.0)

    async def watch() -> list[int]:
        node = Node(tmp_path, gpus.Gpus((), {}, {}, simulated=False), Options())
        start = node.journal.position
        node.journal.append(list(NEWS))
        server = await asyncio.start_unix_server(agent.Server(node).serve, tmp_path / "socket")
        reader, writer = await asyncio.open_unix_connection(tmp_path / "socket")
        writer.write(protocol.dumps({"op": "watch", "since": start}))
        lines = [await asyncio.wait_for(reader.readline(), 60) for _ in range(2)]
        writer.close()
        server.close()
        return [len(protocol.batch_from(json.loads(line)).items) for line in lines]

    assert asyncio.run(watch()) == [len(NEWS), 0]
