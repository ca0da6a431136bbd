"""Seeding the demonstration: it happens once, completely or not at all, and never touches an existing one."""

from __future__ import annotations

import io
import json
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pypdf
import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, transaction
from django.test import override_settings

from portal.installation import demonstration

# One group, as the buckets have fixed names on the S3 server that all test processes share.
pytestmark = [pytest.mark.django_db, pytest.mark.xdist_group("seed")]


@pytest.fixture
def credentials(settings: Any, tmp_path: Path) -> Path:
    settings.DATA_DIR = tmp_path
    return tmp_path / "credentials.json"


@pytest.fixture(autouse=True)
def undecided(real_portal: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a server that has just started."""
    monkeypatch.setattr(demonstration, "_known", None)


def remove_buckets(s3: Any) -> None:
    from datastores.drivers import driver_for

    for bucket in ("demo-input", "demo-output"):
        if bucket in [each["Name"] for each in s3.client.list_buckets()["Buckets"]]:
            fields = {"server": s3.url, "access_key": s3.access_key, "bucket": bucket}
            driver_for("s3", fields, s3.secret_key).delete_folder("")
            s3.client.delete_bucket(Bucket=bucket)


def seed() -> str:
    out = io.StringIO()
    call_command("seed_demo", stdout=out)
    return out.getvalue()


def everything() -> dict[str, int]:
    from django.apps import apps

    return {
        model.__name__: model.objects.count() for model in apps.get_models() if model.__module__.split(".")[0] in APPS
    }


APPS = ("portal", "billing", "datastores", "clusters")


@dataclass(frozen=True)
class Seeded:
    printed: str
    credentials: Path


class TestSeeded:
    """Seeded once for the class; the changes of each test are rolled back."""

    @pytest.fixture(scope="class")
    def seeded(
        self, s3: Any, django_db_setup: None, django_db_blocker: Any, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[Seeded]:
        folder = tmp_path_factory.mktemp("seeded")
        with django_db_blocker.unblock(), transaction.atomic():
            with override_settings(DATA_DIR=folder), pytest.MonkeyPatch.context() as patch:
                patch.setattr(demonstration, "_known", None)
                printed = seed()
            yield Seeded(printed, folder / "credentials.json")
            transaction.set_rollback(True)
        remove_buckets(s3)

    @pytest.fixture
    def credentials(self, seeded: Seeded, credentials: Path) -> Path:
        """A copy, which a test may change."""
        return Path(shutil.copy(seeded.credentials, credentials))

    def test_everything_a_newcomer_needs_is_there(self, seeded: Seeded, credentials: Path, client: Any) -> None:
        from billing.models import UsageSegment
        from clusters.access import cluster_for
        from clusters.catalog.models import Flavor, Image
        from clusters.demo.plan import TEAMS
        from portal.access import OPERATE, appcodes_for, may
        from portal.models import User

        known = json.loads(credentials.read_text())
        assert stat.S_IMODE(credentials.stat().st_mode) == 0o600
        assert known["url"] == "http://portal.localhost:8000"
        assert {name: person["role"] for name, person in known["users"].items()} == {
            "root": "administrator",
            "alice": "owner",
            "bob": "developer",
            "victor": "viewer",
            "mallory": "outsider",
        }
        for name, person in known["users"].items():
            assert person["password"] in seeded.printed
            assert person["token"] not in seeded.printed
            assert User.objects.get(username=name).check_password(person["password"])
            answer = client.get("/api/v1/me", headers={"authorization": f"Bearer {person['token']}"})
            assert answer.json()["username"] == name
        people = {name: User.objects.get(username=name) for name in known["users"]}
        assert people["root"].is_administrator
        assert [code.code for code in appcodes_for(people["mallory"])] == ["flight-demo"]
        teams = {team.code for team in TEAMS}
        assert {code.code for code in appcodes_for(people["root"])} == {"ops-demo", "flight-demo", *teams}
        assert {code.code for code in appcodes_for(people["alice"])} == {"ops-demo", *teams}
        assert set(UsageSegment.objects.values_list("appcode__code", flat=True)) == teams
        show1 = cluster_for(people["alice"], "ops-demo", "show1")
        assert may(people["bob"], show1.appcode, OPERATE)
        assert not may(people["victor"], show1.appcode, OPERATE)
        assert show1.current_run is not None
        assert {role: item["count"] for role, item in show1.current_run.roles.items()} == {
            "master": 1,
            "ps": 1,
            "worker": 2,
        }
        assert Flavor.objects.get(name="middle-1-gpu").title == "Middle + 1 GPU"
        assert (Path(Image.objects.get(name__startswith="tensorflow").program) / "digits_ps.py").exists()

    def test_the_digits_are_in_the_input(self, credentials: Path, s3: Any) -> None:
        data = np.load(io.BytesIO(s3.client.get_object(Bucket="demo-input", Key="digits.npz")["Body"].read()))
        assert data["images"].shape == (1797, 64)
        assert data["images"].max() == 16
        assert sorted(set(data["labels"].tolist())) == list(range(10))

    def test_the_datastores_work(self, credentials: Path) -> None:
        from datastores.actions import try_datastore
        from datastores.models import Datastore
        from portal.models import User

        for store in Datastore.objects.all():
            assert try_datastore(store, acting_user=User.objects.get(username="alice")).ok

    def test_a_second_time_changes_nothing_and_prints_no_passwords(self, credentials: Path) -> None:
        from clusters.cluster.actions import delete_cluster
        from clusters.runs.models import Cluster
        from portal.models import User

        delete_cluster(Cluster.objects.get(), acting_user=User.objects.get(username="alice"))
        before, file = everything(), credentials.read_text()
        assert seed() == ""
        assert everything() == before
        assert credentials.read_text() == file

    def test_credentials_follow_the_portal(self, credentials: Path, settings: Any) -> None:
        settings.PORTAL_ORIGIN = "http://portal.localhost:9000"
        seed()
        assert json.loads(credentials.read_text())["url"] == "http://portal.localhost:9000"
        assert stat.S_IMODE(credentials.stat().st_mode) == 0o600

    def test_every_page_and_invoice_says_so_and_nobody_can_take_it_back(self, credentials: Path, client: Any) -> None:
        from billing.models import UsageSegment
        from portal.models import Event, User

        said = "Demonstration: history is generated"
        assert said in client.get("/accounts/login/").content.decode()
        client.force_login(User.objects.get(username="alice"))
        month = f"{UsageSegment.objects.latest('started').started:%Y-%m}"
        for page in ("/", "/dashboard", "/billing/ads", f"/invoices/ads/{month}", "/profile"):
            assert said in client.get(page, follow=True).content.decode(), page
        pdf = client.get(f"/invoices/ads/{month}?format=pdf").content
        assert said in "".join(page.extract_text() for page in pypdf.PdfReader(io.BytesIO(pdf)).pages)
        with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
            Event.objects.filter(verb=demonstration.MADE).delete()


def test_a_portal_with_people_stays_real(people: Any, client: Any) -> None:
    client.force_login(people.alice)
    assert "Demonstration" not in client.get("/dashboard").content.decode()
    assert demonstration._known is False, "and is not asked about again"


def test_somebody_elses_portal_is_left_alone(credentials: Path, people: Any, s3: Any) -> None:
    before = everything()
    with pytest.raises(CommandError, match="in use already"):
        seed()
    assert everything() == before
    assert not credentials.exists()
    remove_buckets(s3)


def test_without_object_storage_its_data_lies_in_folders(credentials: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from datastores.actions import open_store
    from datastores.models import Datastore

    monkeypatch.delenv("PORTAL_S3_URL")
    seed()
    store = Datastore.objects.get(name="demo-input")
    assert (store.kind, [each.path for each in open_store(store).walk("")]) == ("local", ["digits.npz"])


def test_without_an_s3_server_nothing_is_half_made(
    credentials: Path, monkeypatch: pytest.MonkeyPatch, client: Any
) -> None:
    monkeypatch.setenv("PORTAL_S3_URL", "http://127.0.0.1:1")
    before = everything()
    with pytest.raises(CommandError, match="could not be stored"):
        seed()
    assert everything() == before
    assert "Demonstration" not in client.get("/accounts/login/").content.decode()
