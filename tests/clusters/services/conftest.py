"""A model with versions, and a service for it, as rows only."""

import pytest


@pytest.fixture
def model(people, catalogue):
    """digits with three versions, `champion` naming version 1. None was trained, so nothing can serve them."""
    return new_model(people, "http://127.0.0.1:1")


def new_model(people, server):
    """The same model, with its files on that S3 server."""
    from clusters.model_registry import actions
    from clusters.model_registry.models import ModelVersion, RegisteredModel
    from datastores.models import Datastore, Version

    spec = {"server": server, "bucket": "none", "prefix": "", "access_key": "a", "region": "us-east-1"}
    store = Datastore.objects.create(appcode=people.ops, name="results", kind="s3", spec=spec, secret="s")
    made = RegisteredModel.objects.create(appcode=people.ops, name="digits", version_count=3, created_by=people.bob)
    for number in (1, 2, 3):
        folder = f"train/{number}"
        frozen = Version.objects.create(
            datastore=store, name=f"digits.{number}", folder=folder, digest="0", files=1, bytes=1
        )
        ModelVersion.objects.create(
            model=made, number=number, frozen=frozen, datastore="results", folder=folder, files=[], size=1,
            format="saved-model", state=ModelVersion.State.READY, created_by=people.bob,
        )  # fmt: skip
    actions.move_alias(made, "champion", 1, acting_user=people.bob)
    return made


@pytest.fixture
def service_manifest():
    """service_manifest("digits", replicas={"least": 2, "most": 2}, …) → ServiceManifest in ops-demo."""
    return new_manifest


def new_manifest(name="digits", appcode="ops-demo", **spec):
    from clusters.services.manifest import ServiceManifest
    from portal.manifests import parse

    body = {"model": "digits@champion", "image": "python", "flavor": "small", **spec}
    return parse(ServiceManifest, {"kind": "service", "metadata": {"name": name, "appcode": appcode}, "spec": body})


@pytest.fixture
def service(people, model, service_manifest):
    """digits of ops-demo, created by bob."""
    from clusters.services.actions import create_service

    return create_service(service_manifest(), acting_user=people.bob)
