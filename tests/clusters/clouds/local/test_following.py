"""A run that follows event files in a real S3 server: copies appear and grow with them."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest

from clusters.clouds.drivers import follow
from clusters.clouds.drivers.base import Mount
from portal.up.services import dies_with_parent
from tests.clusters.clouds.local.agents import Agent, Store, bad_key, role
from tests.running import eventually

SHOW = """
cd /elearn/runs/train/3
exec 3< <(until [ -e logs/events.out.tfevents.1 ]; do sleep 0.1; done; tail -n +1 -f logs/events.out.tfevents.1)
while read -r line <&3; do echo "$line"; done
"""


def followed(store: Store) -> Mount:
    return Mount("/elearn/runs/train/3", True, store.source("results", "train/3"), follow=True)


@pytest.mark.as_user
def test_new_bytes_are_appended_to_a_file_that_is_open(agent: Agent, store: Store) -> None:
    store.upload("results", "train/3/ckpt-1", "large")
    store.upload("results", "other/events.out.tfevents.9", "not mine")
    run = agent.apply(role(SHOW), mounts=(followed(store),))
    agent.until(lambda: (task := agent.task(run)) and task.phase == "Running")
    store.upload("results", "train/3/logs/events.out.tfevents.1", "one\ntw")
    agent.until_output(run, "one")
    store.upload("results", "train/3/logs/events.out.tfevents.1", "one\ntwo\nthree\n")
    agent.until_output(run, "three")
    assert agent.output(run).split() == ["one", "two", "three"]
    copy = agent.folder / "cloud" / "runs" / str(run.id) / "mounts" / "0"
    assert [path.name for path in copy.rglob("*") if path.is_file()] == ["events.out.tfevents.1"]
    agent.cloud.delete(run)
    assert agent.gone(run).stored


@pytest.mark.as_user
def test_no_task_finds_the_keys_and_it_begins_before_there_is_anything(agent: Agent, store: Store) -> None:
    script = "ls -A /elearn/runs/train/3; env; cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'; echo over"
    run = agent.apply(role(script), mounts=(followed(store),))
    assert agent.ended(run).phase == "Succeeded"
    said = agent.output(run)
    assert store.secret_key not in said
    assert store.access_key not in said
    assert said.endswith("over\n")


def test_what_stands_in_the_way_is_told_and_passes(agent: Agent, store: Store) -> None:
    for mount, words in (
        (bad_key(followed(store)), f"{store.url} refused the access key of the datastore for bucket results."),
        (
            replace(followed(store), source=replace(store.source("results"), endpoint="http://127.0.0.1:9")),
            "cannot be reached.",
        ),
    ):
        run = agent.apply(role("sleep 600"), mounts=(mount,))
        # On a busy machine it is first told that rclone does not answer yet.
        told = agent.storage(run, "failed", words=words)
        assert told.message.startswith("Event files of ")
        agent.cloud.delete(run)
        agent.gone(run)


def test_the_program_of_the_image_does_the_same(store: Store, tmp_path: Path) -> None:
    """Started like a container on Kubernetes: remotes and keys in its environment, its own files in HOME."""
    home, copies = tmp_path / "home", tmp_path / "copies"
    home.mkdir()
    copies.mkdir()
    facts = {"TYPE": "s3", "PROVIDER": "Other", "ENDPOINT": store.url, "REGION": "us-east-1"}
    keys = {"ACCESS_KEY_ID": store.access_key, "SECRET_ACCESS_KEY": store.secret_key}
    remote = {f"RCLONE_CONFIG_DATA0_{name}": value for name, value in (facts | keys).items()}
    env = remote | {"HOME": str(home), "PATH": f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"}
    store.upload("results", "train/3/x.tfevents", "one\n")
    argv = [sys.executable, "-I", "-S", follow.__file__, "--every", "0.1", "data0:results/train/3/", str(copies)]
    with subprocess.Popen(dies_with_parent(argv, "TERM"), env=env) as program:
        try:
            assert eventually(lambda: (home / "reached").exists() and (copies / "x.tfevents").exists())
            store.upload("results", "train/3/x.tfevents", "one\ntwo\n")
            assert eventually(lambda: (copies / "x.tfevents").read_text() == "one\ntwo\n")
        finally:
            program.terminate()
