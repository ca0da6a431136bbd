"""The retention rule of a model: over REST, on its page and when due, while aliases move and versions are in use."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import Client
from django.utils import timezone

from clusters import tasks
from clusters.cluster import actions as clusters
from clusters.model_registry import actions, rules
from clusters.model_registry.manifest import ModelManifest
from clusters.model_registry.models import ModelRetention, ModelVersion, RegisteredModel
from clusters.pipelines.models import Pipeline
from datastores.models import AllowedFolder, Datastore, Version
from portal.errors import Invalid
from portal.manifests import parse
from portal.models import Event
from tests.api.client import api_of

pytestmark = pytest.mark.django_db(transaction=True)

RULE = "/appcodes/ops-demo/models/digits/retention"
PAGE = "/models/ops-demo/digits/retention"


@pytest.fixture
def digits(people: Any, tmp_path: Any) -> RegisteredModel:
    """A model with eight versions, registered one day apart, the last one today."""
    AllowedFolder.objects.create(path=str(tmp_path))
    store = Datastore.objects.create(appcode=people.ops, name="disk", kind="local", spec={"path": str(tmp_path)})
    model = actions.create_model(parse(ModelManifest, {"metadata": {"name": "digits"}}, appcode="ops-demo"), people.ops,
                                 acting_user=people.bob)  # fmt: skip
    for number in range(1, 9):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "model.onnx").write_bytes(b"12345")
        said = {"spec": {"datastore": "disk", "path": str(number), "format": "onnx"}}
        assert api_of(people.bob).post("/appcodes/ops-demo/models/digits/versions", said)[0] == 201
        since = timezone.now() - dt.timedelta(days=8 - number)
        ModelVersion.objects.filter(number=number).update(state="Ready", created_at=since)
    assert store.versions.count() == 8
    return model


def waiting(cursor: Any) -> bool:
    """True if another connection waits for a lock of this one."""
    cursor.execute("SELECT count(*) FROM pg_locks WHERE pg_backend_pid() = ANY(pg_blocking_pids(pid))")
    return bool(cursor.fetchone()[0])


def numbers(model: RegisteredModel) -> list[int]:
    return sorted(model.versions.filter(deleted_at=None).values_list("number", flat=True))


def test_a_rule_does_what_its_preview_says_once_and_holds_back_what_is_used(
    people: Any,
    digits: RegisteredModel,
    manifest: Callable[..., Any],
    catalogue: Any,
    django_assert_max_num_queries: Any,
) -> None:
    api = api_of(people.bob)
    for number in (2, 3):
        actions.move_alias(digits, "champion", number, acting_user=people.bob)
    batch = clusters.create_cluster(manifest("batch", model="digits/4"), acting_user=people.bob)
    stage = {"name": "predict", "spec": {**batch.spec, "model": "digits/5"}}
    Pipeline.objects.create(appcode=people.ops, name="nightly", spec={"stages": [stage]})

    assert (api.get(RULE)[0], api.get(f"{RULE}/preview")[0], api.delete(RULE)[0]) == (404, 404, 404)
    for body, path in (
        ({}, "keep"),
        ({"keep": 0}, "keep"),
        ({"keep": 1, "days": 0}, "days"),
        ({"keep": 1, "x": 1}, "x"),
    ):
        status, said = api.put(RULE, body)
        assert (status, said["errors"][0]["path"]) == (422, path)
    with django_assert_max_num_queries(20):
        would = api.post(f"{RULE}/preview", {"keep": 1})[1]
    assert ([each["version"] for each in would["items"]], would["bytes"]) == ([1, 6, 7], 15)
    assert {each["version"]: each["reasons"] for each in would["held"]} == {
        2: ["champion goes back to it when it is rolled back"], 3: ["champion names it"], 4: ["cluster batch has it"],
        5: ["pipeline nightly has it"],
    }  # fmt: skip
    assert would["kept"] == [{"reason": "the last", "versions": [8]}]
    assert api.delete("/appcodes/ops-demo/models/digits/versions/5")[1]["detail"].startswith(
        "Version 5 is used by the pipeline nightly"
    )

    rule = {"keep": 1, "days": 3}
    status, saved = api.put(RULE, rule)
    assert (status, saved["keep"], saved["days"], saved["savedBy"], saved["applied"]) == (200, 1, 3, "bob", None)
    would = api.get(f"{RULE}/preview")[1]
    assert [each["version"] for each in would["items"]] == [1]
    assert would["kept"][1] == {"reason": "registered in the last 3 days", "versions": [7, 6]}
    assert numbers(digits) == [*range(1, 9)], "nothing goes but in its turn"
    tasks.apply_model_rules()
    assert numbers(digits) == [*range(2, 9)]
    done = api.get(RULE)[1]
    assert (done["versions"], done["bytes"], done["due"] > done["applied"]) == (1, 5, True)
    told = Event.objects.get(verb="model.version-deleted")
    assert told.message == (
        "Version 1: deleted by the rule “Keep the last version, and all of the last 3 days”; its files stay."
    )
    assert (told.actor_name, told.object, told.data["version"]) == ("portal", "model ops-demo/digits", 1)
    assert not Version.objects.filter(name="digits.1").exists(), "nothing keeps its files any more"

    # Saving it unchanged makes no new rule. A day later it deletes what has become old, but no version in use.
    assert api.put(RULE, rule)[1] == done
    tasks.apply_model_rules()
    assert numbers(digits) == [*range(2, 9)]
    ModelVersion.objects.filter(number=6).update(created_at=timezone.now() - dt.timedelta(days=4))
    for _ in range(2):
        ModelRetention.objects.update(due_at=timezone.now())
        tasks.apply_model_rules()
        assert numbers(digits) == [2, 3, 4, 5, 7, 8]
    assert Event.objects.filter(verb="model.version-deleted").count() == 2
    assert api.delete(RULE)[0] == 204
    assert list(Event.objects.filter(verb__startswith="model.rule-").order_by("id").values_list("verb", flat=True)) == [
        "model.rule-saved", "model.rule-removed",
    ]  # fmt: skip


def test_an_alias_that_moves_while_a_rule_is_applied_waits_for_it_and_one_that_was_quicker_holds_its_version(
    people: Any, digits: RegisteredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    actions.save_retention(digits, rules.RetentionSpec(keep=5), acting_user=people.bob)
    monkeypatch.setattr(rules, "MOST_DELETED", 2)
    said: list[str] = []

    def move() -> None:
        try:
            actions.move_alias(digits, "champion", 2, acting_user=people.bob)
        except Invalid as error:
            said.append(str(error))
        finally:
            connection.close()

    mover = threading.Thread(target=move)
    decide = rules.decide

    def decided(*facts: Any) -> Any:
        found = decide(*facts)
        if not mover.ident:
            mover.start()
            with connection.cursor() as cursor:
                until = time.monotonic() + 30
                while time.monotonic() < until and not waiting(cursor):
                    mover.join(0.01)
            assert mover.is_alive(), "it waits for what is decided here"
        return found

    monkeypatch.setattr(rules, "decide", decided)
    rules.apply(digits)
    mover.join()
    assert numbers(digits) == [3, 4, 5, 6, 7, 8]
    assert "has no version 2" in said[0]
    # Death in the middle rolls back the whole turn; a version that gets an alias before the next turn stays.
    actions.move_alias(digits, "champion", 3, acting_user=people.bob)
    ModelRetention.objects.update(keep=3)
    delete = actions.delete_version

    def dying(version: ModelVersion, **how: Any) -> None:
        delete(version, **how)
        if version.number == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(actions, "delete_version", dying)
        rules.sweep()
    assert numbers(digits) == [3, 4, 5, 6, 7, 8]
    rule = ModelRetention.objects.get()
    assert rule.due_at > timezone.now(), "it keeps no other waiting"
    actions.move_alias(digits, "spare", 4, acting_user=people.bob)
    with transaction.atomic():
        rules.apply(digits)
    assert numbers(digits) == [3, 4, 6, 7, 8]
    # A model that is created again does not inherit the old rule.
    for alias in ("champion", "spare"):
        actions.remove_alias(digits, alias, acting_user=people.bob)
    actions.delete_model(digits, acting_user=people.bob)
    assert not ModelRetention.objects.exists()


def test_a_version_of_which_a_run_is_being_made_stays_and_of_one_that_has_just_gone_none_is_made(
    people: Any, digits: RegisteredModel, manifest: Callable[..., Any], catalogue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    actions.save_retention(digits, rules.RetentionSpec(keep=6), acting_user=people.bob)

    def apply() -> None:
        rules.apply(digits)
        connection.close()

    def turn() -> None:
        applied = threading.Thread(target=apply)
        applied.start()
        applied.join()

    with transaction.atomic():
        clusters.create_cluster(manifest("batch", model="digits/2"), acting_user=people.bob)
        turn()
    assert numbers(digits) == [*range(2, 9)]
    resolve = clusters.resolve

    def late(*facts: Any, **how: Any) -> Any:
        found = resolve(*facts, **how)
        turn()
        return found

    actions.save_retention(digits, rules.RetentionSpec(keep=5), acting_user=people.bob)
    monkeypatch.setattr(clusters, "resolve", late)
    with pytest.raises(Invalid) as caught:
        clusters.create_cluster(manifest("late", model="digits/3"), acting_user=people.bob)
    assert caught.value.errors[0].path == ("spec", "model")
    assert caught.value.errors[0].message == "Version 3 of digits has just been deleted; name another one."
    assert numbers(digits) == [2, *range(4, 9)]


def test_on_its_page_a_rule_is_saved_as_it_was_previewed_and_what_it_deleted_is_listed(
    people: Any, digits: RegisteredModel, client: Client
) -> None:
    client.force_login(people.bob)
    page = client.post(PAGE, {"keep": "5", "days": "", "do": "save"}).content.decode()
    assert ('<b class="num">3</b> versions would be deleted when you save it' in page, "Save rule" in page) == (
        True,
        True,
    )
    seen = "Keep the last 5 versions"
    assert f'value="{seen}"' in page
    # A rule changed after its preview is previewed again.
    page = client.post(PAGE, {"keep": "6", "days": "", "do": "save", "seen": seen}).content.decode()
    assert '<b class="num">2</b> versions would be deleted when you save it' in page
    assert not ModelRetention.objects.exists()
    assert "Give a whole number." in client.post(PAGE, {"keep": "x", "do": "preview"}).content.decode()
    page = client.post(PAGE, {"keep": "5", "days": "", "do": "save", "seen": seen}, follow=True).content.decode()
    assert "Saved: Keep the last 5 versions." in page
    assert "would be deleted now" in page
    rules.sweep()
    page = client.get(PAGE).content.decode()
    assert page.count("deleted by the rule “Keep the last 5 versions”") == 3
    assert "Nothing would go now." in page
    client.force_login(people.victor)
    assert "Preview</button>" not in client.get(PAGE).content.decode()
