"""`manage.py seed_demo`: creates the demonstration, once.

Two business lines with an appcode each, five users, the catalogue, prices, two datastores with scikit-learn's
handwritten digits (in the appcode's object storage, or on the S3 server in PORTAL_S3_URL), the example cluster `show1`
that trains on them, a budget, and some weeks of generated usage (clusters/demo). Objects are stored first, because
storing them again changes nothing; then one transaction creates all rows or none. An event records that it was done,
and every page shows it (portal/installation/demonstration.py). Later changes by users stay, and passwords are printed only that
once.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import importlib.util
import io
import json
import logging
import os
import secrets
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction
from django.utils import timezone

from billing.budgets import actions as budget_actions
from billing.models import Price
from clusters.catalog.models import Flavor, Image
from clusters.clouds.drivers.local.agent import gpus
from clusters.cluster.actions import create_cluster
from clusters.demo import history, plan, plugins
from clusters.manifest.cluster import ClusterManifest
from datastores.actions import create_datastore
from datastores.models import AllowedFolder
from datastores.specs import DatastoreManifest
from datastores.storage import actions, store
from datastores.storage.store import KeyPair
from portal.actions.appcodes import request_appcode
from portal.actions.members import set_member
from portal.actions.tokens import make_token
from portal.errors import Conflict
from portal.installation.demonstration import declare, is_demonstration
from portal.manifests.appcode import AppcodeManifest
from portal.models import Appcode, OrgNode, User
from portal.up.services import write_private

TOKEN_DAYS = 365
OWNER, INPUT, OUTPUT = "ops-demo", "demo-input", "demo-output"
DIGITS = "digits.npz"
log = logging.getLogger(__name__)

# User name → role, in the words of credentials.json.
PEOPLE = {
    "root": "administrator",
    "alice": "owner",
    "bob": "developer",
    "victor": "viewer",
    "mallory": "outsider",
}
BUSINESS_LINES = (("example", "Example", None), ("example.ops", "OPS", "ops"), ("example.flight", "Flight", "flight"))
APPCODES = (
    ("ops-demo", "OPS demonstration", "example.ops", "alice"),
    ("flight-demo", "Flight demonstration", "example.flight", "mallory"),
)

# Name, title, millicores, MiB, GPUs. An idle TensorFlow process takes 700 MiB. A machine with 2 cores and 8 GiB can run
# show1; with 16 GiB it can run a cluster with all 8 GPUs.
FLAVORS = (
    ("small", "Small", 500, 1024, 0),
    ("middle", "Middle", 1000, 1536, 0),
    ("middle-1-gpu", "Middle + 1 GPU", 1000, 1536, 1),
    ("large", "Large", 4000, 8192, 0),
    ("large-2-gpu", "Large + 2 GPU", 2000, 3072, 2),
    ("large-4-gpu", "Large + 4 GPU", 4000, 6144, 4),
    ("large-8-gpu", "Large + 8 GPU", 8000, 12288, 8),
)
# Per hour and GPU, core, or GiB.
PRICES = (("gpu", Decimal("1.2")), ("cpu", Decimal("0.03")), ("memory", Decimal("0.004")))
# Per month, for OPS.
BUDGET = Decimal(500)


class Command(BaseCommand):
    help = "Makes the demonstration: people, appcodes, catalogue, prices, data and the cluster show1. Once."
    # The checks look for mistakes in our code and load all pages, which this process does not need; `make lint` runs them.
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        credentials = settings.DATA_DIR / "credentials.json"
        if is_demonstration():
            _keep_address(credentials)
            return
        places, made = _places()
        with transaction.atomic():
            try:
                declare()
            except Conflict as conflict:
                raise CommandError(f"{conflict} It stays as it is with PORTAL_DEMO=0.") from conflict
            people = _people()
            _appcodes(people)
            _catalogue(people["root"][0])
            ops = Appcode.objects.get(code=OWNER)
            if made:
                actions.adopt(ops, made, acting_user=people["alice"][0])
            if any("local" in spec for spec in places.values()):
                AllowedFolder.objects.create(path=str(_folder())).appcodes.add(ops)
            for name, spec in places.items():
                manifest = {"metadata": {"name": name, "appcode": OWNER}, "spec": spec}
                create_datastore(DatastoreManifest.model_validate(manifest), acting_user=people["alice"][0])
            create_cluster(_show1(), acting_user=people["alice"][0])
            budget_actions.add(ops, budget_actions.Asked(BUDGET, "stop_services", 30), acting_user=people["alice"][0])
            history.fill(timezone.now(), owner=people["root"][0], viewer=people["alice"][0])
            # Last, but before the commit: lost passwords would be worse than none.
            users = {
                name: {"password": password, "token": _token(user), "role": PEOPLE[name]}
                for name, (user, password) in people.items()
            }
            write_private(credentials, json.dumps({"url": settings.PORTAL_ORIGIN, "users": users}, indent=2) + "\n")
        self.stdout.write("  Sign in as one of these; it is shown only now, and kept in credentials.json:")
        for name, (_, password) in people.items():
            self.stdout.write(f"    {name:8} {password}   {PEOPLE[name]}")


def _people() -> dict[str, tuple[User, str]]:
    people = {}
    for name, role in PEOPLE.items():
        password = "-".join(secrets.token_hex(2) for _ in range(4))
        make = User.objects.create_superuser if role == "administrator" else User.objects.create_user
        people[name] = (make(name, f"{name}@example.com", password), password)
    return people


def _appcodes(people: dict[str, tuple[User, str]]) -> None:
    for path, title, namespace in BUSINESS_LINES:
        OrgNode.objects.create(path=path, title=title, namespace=namespace)
    root = people["root"][0]
    for code, name, path, owner in APPCODES:
        spec = {"orgNode": path, "name": name, "owners": [owner], "emails": [f"{code}@example.com"]}
        manifest = AppcodeManifest.model_validate({"metadata": {"name": code}, "spec": spec})
        appcode = request_appcode(manifest, acting_user=root)
        if code == "ops-demo":
            set_member(appcode, "bob", "developer", acting_user=root)
            set_member(appcode, "victor", "viewer", acting_user=root)


def _catalogue(administrator: User) -> None:
    for name, title, cpu_milli, memory_mb, gpus_ in FLAVORS:
        Flavor.objects.create(name=name, title=title, cpu_milli=cpu_milli, memory_mb=memory_mb, gpus=gpus_)
    # The portal's own environment has TensorFlow: requirements.txt installs it.
    version = ".".join(importlib.metadata.version("tensorflow").split(".")[:2])
    Image.objects.create(
        name=f"tensorflow-{version.replace('.', '-')}",
        title=f"TensorFlow {version}",
        description="With TensorBoard, NumPy and scikit-learn; the example programs are in /elearn/program.",
        container=f"gpu-cloud/tensorflow:{version}",
        environment=sys.prefix,
        program=str(settings.BASE_DIR / "examples"),
        frameworks=["tensorflow", "tensorboard", "serving"],
    )
    lab = ".".join(importlib.metadata.version("jupyterlab").split(".")[:2])
    jupyter = Image.objects.create(
        name=f"jupyter-{lab.replace('.', '-')}",
        title=f"JupyterLab {lab} with TensorFlow {version}",
        description="With TensorBoard, git, terminals and resource usage; cells go on when the browser is closed.",
        container=f"gpu-cloud/jupyter:{lab}",
        environment=sys.prefix,
        program=str(settings.BASE_DIR / "examples"),
        frameworks=["tensorflow", "tensorboard", "jupyter", "notebook"],
    )
    plugins.offer(jupyter, administrator)
    Image.objects.create(
        name="pytorch-2-9",
        title="PyTorch 2.9",
        description="A container only: for clusters on Kubernetes.",
        container="pytorch/pytorch:2.9.0-cuda12.8-cudnn9-runtime",
        frameworks=["pytorch"],
    )
    # Usage before today needs a price, too.
    for sku, per_hour in PRICES:
        Price.objects.create(sku=sku, per_hour=per_hour, valid_from=plan.begins(timezone.now()))


def _places() -> tuple[dict[str, dict[str, Any]], KeyPair | None]:
    """The specs of the datastores, and a new storage key if one was created. Stores the digits in the first datastore.
    They are two folders of the appcode's object storage; with PORTAL_S3_URL two buckets there; and where this kernel
    cannot run the object storage, two folders of this machine."""
    images, labels = _digits()
    file = io.BytesIO()
    np.savez_compressed(file, images=images, labels=labels)
    if url := os.environ.get("PORTAL_S3_URL"):
        keys = {name: os.environ.get(f"PORTAL_S3_{name.upper()}", "") for name in ("access_key", "secret_key")}
        _store(file.getvalue(), url, keys["access_key"], keys["secret_key"])
        return {name: {"s3": {"server": url, "bucket": name, **keys}} for name in (INPUT, OUTPUT)}, None
    try:
        bucket, made = actions.prepare(OWNER)
        store.put(bucket, f"{INPUT}/{DIGITS}", file.getvalue())
    except (Conflict, store.StorageAway) as error:
        log.warning("The demonstration's data lies in folders of this machine: %s", error)
        for name in (INPUT, OUTPUT):
            (_folder() / name).mkdir(parents=True, exist_ok=True)
        (_folder() / INPUT / DIGITS).write_bytes(file.getvalue())
        return {name: {"local": {"path": str(_folder() / name)}} for name in (INPUT, OUTPUT)}, None
    keys = {"access_key": made.access_key, "secret_key": made.secret_key}
    place = {"server": settings.STORAGE["url"], "region": settings.STORAGE["region"], "bucket": bucket, **keys}
    return {name: {"s3": {**place, "prefix": name}} for name in (INPUT, OUTPUT)}, made


def _folder() -> Path:
    return Path(settings.DATA_DIR) / "demonstration"


def _show1() -> ClusterManifest:
    """One master, one parameter server, two workers. Computing tasks get a GPU each if the machine has enough."""
    # A missing GPU is not worth a warning here.
    logging.getLogger(gpus.__name__).setLevel(logging.WARNING)
    there = len(gpus.find(int(os.environ.get("LOCAL_CLOUD_GPUS", "8"))).slots)
    worker = "middle-1-gpu" if there >= 2 else "middle"
    master = "middle-1-gpu" if there >= 3 else "middle"
    return ClusterManifest.model_validate(
        {
            "metadata": {"name": "show1", "appcode": "ops-demo"},
            "spec": {
                "framework": "tensorflow",
                "image": Image.objects.values_list("name", flat=True).get(
                    environment=sys.prefix, name__startswith="tensorflow"
                ),
                "command": "python digits_ps.py",
                "input": INPUT,
                "output": OUTPUT,
                "roles": {
                    "master": {"flavor": master, "count": 1},
                    "ps": {"flavor": "small", "count": 1},
                    "worker": {"flavor": worker, "count": 2},
                },
            },
        }
    )


def _store(digits: bytes, url: str, access_key: str, secret_key: str) -> None:
    """Creates both buckets, and stores the digits in the first."""
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    client = boto3.client(
        "s3",
        endpoint_url=url,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        region_name="us-east-1",
    )
    try:
        there = {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}
        for bucket in {INPUT, OUTPUT} - there:
            client.create_bucket(Bucket=bucket)
        client.put_object(Bucket=INPUT, Key=DIGITS, Body=digits)
    except (BotoCoreError, ClientError) as error:
        raise CommandError(f"The demonstration's data could not be stored: {error}") from error


def _digits() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """scikit-learn's handwritten digits as bytes: images (n, 64) from 0 to 16, and labels (n,). Read from its data
    file, because importing scikit-learn takes seconds."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise CommandError("The Python package scikit-learn is missing; it comes with requirements.txt.")
    path = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(path, "rt") as file:
        rows = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    return rows[:, :-1], rows[:, -1]


def _token(user: User) -> str:
    _, text = make_token("demonstration", TOKEN_DAYS, acting_user=user)
    return text


def _keep_address(credentials: Path) -> None:
    """Updates the address in credentials.json: another start may use another port."""
    if credentials.exists():
        known = json.loads(credentials.read_text())
        if known["url"] != settings.PORTAL_ORIGIN:
            write_private(credentials, json.dumps(known | {"url": settings.PORTAL_ORIGIN}, indent=2) + "\n")
