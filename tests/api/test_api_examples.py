"""Every example of the API description is accepted when sent unchanged to the demonstration that `make run` creates.

API users start from these examples, so they must name objects that exist. Examples that need a finished run or a running notebook
fail with 409 (wrong state), never because of a field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.api.client import Api, api_of

pytestmark = pytest.mark.django_db

# Values of placeholders, by a part of the address; the name in the example itself comes first.
PLACES: dict[str, dict[str, str]] = {
    "/appcodes/": {"code": "ops-demo"},
    "/applications/": {"name": "notes"},
    "/clusters/": {"name": "show1", "run": "1", "role": "master", "index": "0"},
    "/datastores/": {"name": "demo-output", "path": "model.keras"},
    "/git-tokens/": {"host": "gitlab.example.com"},
    "/flavors/": {"name": "large-1-gpu"},
    "/images/": {"image": "jupyter-4-6", "name": "pytorch-nightly"},
    "/models/": {"name": "digits"},
    "/org-nodes/": {"path": "example.research"},
    "/pull-secrets/": {"path": "example.ops", "host": "registry.example.com"},
    "/sharing": {"name": "bucket-output"},
}
# Addresses of the platform, which need an administrator.
PLATFORM = (
    "/appcodes", "/branding", "/flavors", "/images", "/invoicing", "/kubernetes", "/org-nodes", "/pull-secrets/", "/webhooks",
)  # fmt: skip
# Statuses of examples that fail for another reason than their fields: nothing has run, and the plugin exists already.
UNREADY = {
    "environments_save": 409, "tasks_exec": 409, "model_versions_register": 422, "files_name": 404, "plugins_create": 409,
}  # fmt: skip
# This example approves, as an administrator, the request that the example before it made.
APPROVES = "appcodes_quota_requests_approve"


@pytest.fixture
def demonstration(
    real_portal: None, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Mapping[str, Api]:
    """Clients of alice and root, on a demonstration with data in folders, an allowed folder and one model version."""
    from django.core.management import call_command

    from clusters.model_registry.models import ModelVersion
    from datastores.models import AllowedFolder
    from portal.installation import demonstration
    from portal.models import Appcode, User

    settings.DATA_DIR, settings.NFS_SERVERS = tmp_path, ["10.0.0.7:/data"]
    monkeypatch.delenv("PORTAL_S3_URL")
    monkeypatch.setattr(demonstration, "_known", None)
    call_command("seed_demo")
    AllowedFolder.objects.create(path="/data/output").appcodes.add(Appcode.objects.get(code="ops-demo"))
    alice, root = (api_of(User.objects.get(username=name)) for name in ("alice", "root"))
    assert alice.post("/appcodes/ops-demo/models", {"kind": "model", "metadata": {"name": "digits"}})[0] == 201
    version = {"kind": "modelVersion", "spec": {"datastore": "demo-input", "path": "", "format": "other"}}
    assert alice.post("/appcodes/ops-demo/models/digits/versions", version)[0] == 201
    ModelVersion.objects.update(state="Ready", format="saved-model")
    assert alice.put("/appcodes/ops-demo/models/digits/aliases/champion", {"version": 1})[0] == 200
    return {"alice": alice, "root": root}


def _examples() -> Iterator[tuple[str, str, str, Any]]:
    """Yields (operation, method, path, value): previews first, then what creates the same object, then what changes it."""
    from drf_spectacular.generators import SchemaGenerator

    schema = SchemaGenerator().get_schema(request=None, public=True)
    for path, operations in sorted(schema["paths"].items(), key=lambda each: not each[0].endswith("/preview")):
        for method, operation in sorted(operations.items()):
            for content in operation.get("requestBody", {}).get("content", {}).values():
                for example in content.get("examples", {}).values():
                    yield operation["operationId"], method.upper(), path, example["value"]


def test_every_example_is_accepted(demonstration: Mapping[str, Api]) -> None:
    answers = {}
    for operation, method, path, value in _examples():
        short = path.removeprefix("/api/v1")
        places = {key: text for part, values in PLACES.items() if part in short for key, text in values.items()}
        if (named := value.get("metadata", {}).get("name")) and "/environment" not in short:
            places["code" if short == "/appcodes/{code}" else "name"] = named
        is_platform = (
            operation == APPROVES
            or (short.startswith(PLATFORM) and short.count("/") <= 2)
            or short.startswith(("/images/", "/pull-secrets/"))
        )
        status, answer = demonstration["root" if is_platform else "alice"](method, short.format(**places), value)
        answers[operation, short.format(**places)] = (status, answer.get("detail"))
    wrong = {
        where: answer
        for where, answer in answers.items()
        if answer[0] not in ((UNREADY[where[0]],) if where[0] in UNREADY else (200, 201, 202))
    }
    assert not wrong, "\n".join(map(str, wrong.items()))
    assert len(answers) > 45
