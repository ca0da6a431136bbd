"""Rules of a datastore over REST and on its page, on the real S3 server and in a folder: previewed, saved, applied, undone."""

from __future__ import annotations

import datetime as dt
import io
import json
import os
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from clusters.runs.models import Cluster, Run
from datastores.actions import change_datastore, open_store
from datastores.drivers.base import DriverError
from datastores.files import contents, rules, trash, versions
from datastores.models import Datastore, Removal, Rule
from datastores.specs import DatastoreManifest
from portal.errors import Invalid
from portal.models import Event
from tests.datastores.files.conftest import ROOT
from tests.datastores.files.test_trash import dying, everything, lying

RULES = ROOT.removesuffix("files") + "rules"
FILES = {f"train/1/ckpt-{n}.{end}": b"12345" for n in (9, 10, 11) for end in ("index", "data-00000-of-00001")}
FILES |= {"train/1/checkpoint": b'model_checkpoint_path: "ckpt-11"', "train/2/epoch-1.keras": b"1", "note.txt": b"note"}


@pytest.fixture
def filled(at: str, bob: Any) -> Datastore:
    for path, data in FILES.items():
        assert bob("PUT", f"{at}/{path}", data).status_code == 204
    return Datastore.objects.get(name="data")


def later(monkeypatch: pytest.MonkeyPatch, days: float) -> None:
    """Moves the clock forward by `days`."""
    now = timezone.now() + dt.timedelta(days=days)
    monkeypatch.setattr(timezone, "now", lambda: now)


def test_a_rule_does_what_its_preview_says_and_it_can_be_undone(
    filled: Datastore, bob: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(method: str, address: str, **body: Any) -> Any:
        return bob(method, address, json.dumps(body).encode(), "application/json")

    last = {"kind": "checkpoints", "path": "train", "keep": 2}
    would = ask("POST", f"{RULES}/preview", **last).json()
    old = ["train/1/ckpt-9.data-00000-of-00001", "train/1/ckpt-9.index"]
    assert ([item["path"] for item in would["items"]], would["files"], would["bytes"]) == (old, 2, 10)
    assert (would["complete"], would["held"]) == (True, [])
    assert not Rule.objects.exists()
    assert lying(filled) == FILES
    made = ask("POST", RULES, **last)
    assert made.status_code == 201, made.content_
    assert ask("POST", RULES, **last, days=1).json()["errors"][0]["path"] == "days"
    assert ask("POST", RULES, **last).status_code == 422, "one of a kind for a folder"
    own = made.headers["Location"].removeprefix("http://testserver")
    assert bob("GET", f"{own}/preview").json() == would
    assert lying(filled) == FILES, "nothing goes but in its turn"

    rules.sweep()
    left = {path: data for path, data in FILES.items() if path not in old}
    assert lying(filled) == left
    said = bob("GET", own).json()
    assert (said["files"], said["bytes"], said["message"], said["due"] > said["applied"]) == (2, 10, "", True)
    assert {row.path: row.cause for row in Removal.objects.all()} == dict.fromkeys(
        old, "Keep the last 2 checkpoints in train"
    )
    event = Event.objects.get(verb="datastore.rule-applied")
    assert event.message == "Keep the last 2 checkpoints in train: 2 files with 10 bytes moved to the trash."
    assert (event.actor_name, event.data["files"]) == ("portal", 2)
    # The rule runs again only after a day, and then finds nothing.
    contents.store_file(filled, "train/1/ckpt-12.index", io.BytesIO(b"1"), 1, acting_user=filled.created_by)
    contents.store_file(
        filled, "train/1/ckpt-12.data-00000-of-00001", io.BytesIO(b"1"), 1, acting_user=filled.created_by
    )
    rules.sweep()
    assert len(lying(filled)) == len(left) + 2
    trash.restore(filled, [row.pk for row in Removal.objects.all()], acting_user=filled.created_by)
    assert lying(filled).items() >= FILES.items()
    assert bob("DELETE", own).status_code == 204
    assert bob("GET", own).status_code == 404


def test_old_files_go_but_not_what_a_version_or_a_living_run_has(
    filled: Datastore, people: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster.objects.create(appcode=people.ops, name="train", spec={})
    # Only files in S3 can have versions.
    path = "elsewhere" if filled.kind == "s3" else "{name}/{run}"
    spec = {"input": {"datastore": "ops-demo/data", "path": "train/2"}, "output": "data", "outputPath": path}
    run = Run.objects.create(cluster=cluster, number=1, spec=spec, resources={}, gpus=0)
    # Another appcode has a datastore inside this one.
    contents.store_file(filled, "shared/x", io.BytesIO(b"x"), 1, acting_user=people.bob)
    below = {"prefix": "shared"} if filled.kind == "s3" else {"path": f"{filled.spec['path']}/shared"}
    Datastore.objects.create(
        appcode=people.flight, name="theirs", kind=filled.kind, spec={**filled.spec, **below}, secret="x"
    )
    reads = {"input": "theirs", "output": None, "outputPath": "{name}/{run}"}
    stranger = Cluster.objects.create(appcode=people.flight, name="stranger", spec={})
    Run.objects.create(cluster=stranger, number=1, spec=reads, resources={}, gpus=0)
    rule = rules.add(filled, Rule(kind="files", days=30).spec, acting_user=people.bob)
    rules.sweep()
    files = {**FILES, "shared/x": b"x"}
    assert lying(filled) == files
    later(monkeypatch, 31)
    if filled.kind == "s3":
        versions.freeze(filled, "v1", "train/1", acting_user=people.bob)
    found = rules.preview(filled, rule.spec)
    assert [item.path for item in found.going] == ["note.txt"]
    held = {each.why: each.files for each in found.kept}
    writes = "the version data@v1 has it" if filled.kind == "s3" else "run train/1 writes there"
    assert held == {writes: 7, "run train/1 reads it": 1, "another appcode uses it": 1}
    rules.sweep()
    assert lying(filled) == {path: data for path, data in files.items() if path != "note.txt"}
    # After the run, only the version and the other appcode hold files.
    Run.objects.filter(pk=run.pk).update(gone=True, phase="Succeeded")
    later(monkeypatch, 1.1)
    rules.sweep()
    frozen = {path for path in FILES if path.startswith("train/1/")} if filled.kind == "s3" else set()
    assert set(lying(filled)) == {"shared/x", *frozen}


def test_a_store_that_does_not_answer_is_said_and_asked_again_and_what_cannot_be_seen_whole_is_left_alone(
    filled: Datastore, people: Any, bob: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = rules.add(filled, Rule(kind="checkpoints", keep=1).spec, acting_user=people.bob)
    with pytest.raises(Invalid, match="rules"):
        fields = {"kind": "datastore", "metadata": {"name": "data", "appcode": "ops-demo"}}
        change_datastore(
            filled,
            DatastoreManifest.model_validate({**fields, "spec": {"nfs": {"server": "192.0.2.1", "path": "/x"}}}),
            acting_user=people.alice,
        )
    with monkeypatch.context() as patch:
        patch.setattr(rules, "MOST_FILES", len(FILES) - 1)
        rules.sweep()
    rule.refresh_from_db()
    assert rule.trouble.startswith("There are more than 8 files, and a rule sees all of its folder")
    later(monkeypatch, 1 / 24)
    with monkeypatch.context() as patch:
        moved = []
        driver = type(open_store(filled))
        carry = driver.carry

        def breaks(self: Any, path: str, to: str, **how: Any) -> Any:
            if moved:
                raise DriverError("It does not answer.")
            moved.append(path)
            return carry(self, path, to, **how)

        patch.setattr(driver, "carry", breaks)
        rules.sweep()
    rule.refresh_from_db()
    assert (rule.trouble, rule.files) == ("It does not answer.", 1)
    assert Event.objects.get(verb="datastore.rule-applied").data["files"] == 1
    assert len(lying(filled)) == len(FILES) - 1
    later(monkeypatch, 1 / 24)
    rules.sweep()
    rule.refresh_from_db()
    assert (rule.trouble, rule.files) == ("", 3)
    assert {path for path in lying(filled) if "ckpt" in path} == {path for path in FILES if "ckpt-11" in path}


def test_what_cannot_go_keeps_nothing_else_and_what_was_written_meanwhile_stays(
    filled: Datastore, people: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = rules.add(filled, Rule(kind="files", days=30).spec, acting_user=people.bob)
    driver, held = type(open_store(filled)), rules._held
    carry = driver.carry

    def refuses(self: Any, path: str, to: str, **how: Any) -> Any:
        if path == "note.txt":
            raise DriverError("This name is too long.")
        return carry(self, path, to, **how)

    def writes(store: Datastore) -> Any:
        contents.store_file(store, "train/2/epoch-1.keras", io.BytesIO(b"2"), 1, acting_user=people.bob)
        return held(store)

    later(monkeypatch, 31)
    monkeypatch.setattr(driver, "carry", refuses)
    monkeypatch.setattr(rules, "_held", writes)
    rules.sweep()
    rule.refresh_from_db()
    assert lying(filled) == {"note.txt": b"note", "train/2/epoch-1.keras": b"2"}
    assert (rule.files, rule.trouble) == (len(FILES) - 2, "This name is too long.")
    assert rule.due_at < timezone.now() + dt.timedelta(hours=2), "tried again"


@pytest.mark.parametrize("at", ["local"], indirect=True)
def test_old_times_and_names_that_nobody_could_write_take_nothing_away(
    filled: Datastore, folder: Path, people: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = rules.add(filled, Rule(kind="files", days=30).spec, acting_user=people.bob)
    # The timestamp that tar may restore.
    os.utime(folder / "note.txt", (0, 0))
    assert not rules.preview(filled, rule.spec).going
    deep = folder
    for _ in range(11):
        deep /= "d" * 200
    deep.mkdir(parents=True)
    (deep / "a").touch()
    later(monkeypatch, 31)
    rules.sweep()
    assert [entry.name for entry in open_store(filled).walk("")] == ["a"]
    assert [each.why for each in rules.preview(filled, rule.spec).kept] == [
        "nobody could restore it: no path here is like this"
    ]


@pytest.mark.parametrize("at", ["local"], indirect=True)
def test_what_is_too_much_for_one_turn_goes_by_the_next_ones_and_stands_before_nobody(
    filled: Datastore, people: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "TURN", 0)
    long = rules.add(filled, Rule(kind="checkpoints", keep=1).spec, acting_user=people.bob)
    short = rules.add(filled, Rule(kind="files", days=30).spec, acting_user=people.bob)
    turns = []
    whole = rules.apply

    def apply(rule: Rule) -> None:
        whole(rule)
        turns.append((rule.pk, Removal.objects.count(), Removal.objects.filter(settled=False).count()))

    monkeypatch.setattr(rules, "apply", apply)
    monkeypatch.setattr(trash, "SECONDS", 0)
    rules.sweep()
    assert [pk for pk, _, _ in turns] == [long.pk, short.pk, long.pk, long.pk, long.pk]
    # With a time limit of 0 s every removal is left to the sweep of the trash, one per turn.
    assert [(count, left) for _, count, left in turns] == [(1, 1), (1, 1), (2, 2), (3, 3), (4, 4)]
    assert Event.objects.filter(verb="datastore.rule-applied").count() == 4


@pytest.mark.parametrize("dies", [1, 2, 3])
def test_who_dies_over_a_rule_has_moved_a_part_and_the_next_turn_finds_the_rest(
    filled: Datastore, people: Any, monkeypatch: pytest.MonkeyPatch, dies: int
) -> None:
    rule = rules.add(filled, Rule(kind="checkpoints", keep=1).spec, acting_user=people.bob)
    with monkeypatch.context() as patch:
        steps = count()
        for where, name in ((trash, "remove"), (trash, "carry_on")):
            patch.setattr(where, name, dying(getattr(where, name), steps, dies))
        with pytest.raises(KeyboardInterrupt):
            rules.sweep()
    rules.sweep()
    rule.refresh_from_db()
    assert rule.applied_at is None, "it does not keep others waiting"
    trash.sweep()
    later(monkeypatch, 1 / 24)
    rules.sweep()
    trash.sweep()
    old = {path for path in FILES if "ckpt-9" in path or "ckpt-10" in path}
    assert lying(filled) == {path: data for path, data in FILES.items() if path not in old}
    assert sorted(row.path for row in Removal.objects.all()) == sorted(old)
    assert everything(filled) == sorted(FILES.values())


@pytest.mark.parametrize("at", ["local"], indirect=True)
def test_the_page_saves_a_rule_only_as_it_was_previewed(filled: Datastore, people: Any) -> None:
    page = Client()
    page.force_login(people.bob)
    address = "/datastores/ops-demo/data/rules"
    said = {"kind": "checkpoints", "path": "train", "keep": "2", "days": "7"}
    text = page.post(address, {**said, "do": "save"}).content.decode()
    assert "train/1/ckpt-9.index" in text
    assert 'name="seen" value="Keep the last 2 checkpoints in train"' in text
    seen = {"seen": "Keep the last 2 checkpoints in train", "do": "save"}
    text = page.post(address, {**said, "keep": "1", **seen}).content.decode()
    assert "train/1/ckpt-10.index" in text
    assert not Rule.objects.exists()
    text = page.post(address, {**said, **seen}, follow=True).content.decode()
    assert "Saved: Keep the last 2 checkpoints in train." in text
    rule = Rule.objects.get()
    assert "train/1/ckpt-9.index" in page.get(f"{address}?rule={rule.pk}").content.decode()
    assert page.post(f"{address}/{rule.pk}/remove").status_code == 302
    assert not Rule.objects.exists()
