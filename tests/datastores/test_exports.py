"""NFS exports that datastores may name: checked when a datastore is defined and again when it is mounted."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from datastores import exports
from datastores.actions import change_datastore, create_datastore, try_manifest
from datastores.sources import SourceError, source_for
from portal.errors import Invalid

NFS = {"server": "10.20.0.7", "path": "/data"}


@pytest.mark.parametrize(
    ("entry", "server", "path"),
    [
        ("nas.example.com:/export/ml", "nas.example.com", "/export/ml"),
        ("nas.example.com:/export/ml", "NAS.example.com.", "/export/ml/images"),
        ("nas.example.com:/", "nas.example.com", "/any"),
        ("10.20.0.7", "10.20.0.7", "/any"),
        ("10.20.0.0/16:/tenants/{appcode}", "10.20.3.4", "/tenants/ops-demo/x"),
        ("*.nas.example.com", "a.nas.example.com", "/any"),
        ("[fd00:7::/32]:/data", "[fd00:7::1]", "/data"),
        ("*", "anything", "/any"),
    ],
)
def test_what_the_list_allows(settings: Any, entry: str, server: str, path: str) -> None:
    settings.NFS_SERVERS = ["elsewhere", entry]
    assert exports.why_not(server, path, "ops-demo") == ""


@pytest.mark.parametrize(
    ("entry", "server", "path"),
    [
        ("nas.example.com:/export/ml", "nas.example.com", "/export/mlx"),
        ("nas.example.com:/export/ml", "nas.example.com", "/export"),
        ("nas.example.com", "evil.nas.example.com", "/export"),
        ("10.20.0.0/16", "10.21.0.7", "/"),
        # Anyone may control what a name resolves to, and an old spelling of an address counts as a name.
        ("10.20.0.0/16", "nas.example.com", "/"),
        ("10.0.0.0/8", "167772167", "/"),
        ("10.20.0.0/16:/tenants/{appcode}", "10.20.3.4", "/tenants/flight"),
        ("10.20.0.0/16:/tenants/{appcode}", "10.20.3.4", "/tenants"),
    ],
)
def test_what_the_list_does_not_allow(settings: Any, entry: str, server: str, path: str) -> None:
    settings.NFS_SERVERS = [entry]
    sentence = exports.why_not(server, path, "ops-demo")
    assert sentence.endswith(f"allowed here: {entry.replace('{appcode}', 'ops-demo')}.")


@pytest.mark.parametrize("entry", ["nas/export", "nas:export", "nas:/a/../b", "a b"])
def test_a_list_that_is_not_understood_stops_the_portal(entry: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="PORTAL_NFS_SERVERS"):
        exports.parse((entry,))


def test_a_fresh_portal_allows_no_server(people: Any, manifest: Any, settings: Any) -> None:
    settings.NFS_SERVERS = []
    for act in (create_datastore, try_manifest):
        with pytest.raises(Invalid) as caught:
            act(manifest("nfs", {"nfs": NFS}), acting_user=people.bob)
        [error] = caught.value.errors
        assert error.path == ("spec", "nfs", "server")
        assert error.message == (
            "An administrator has not allowed any NFS server yet; ask them to (PORTAL_NFS_SERVERS)."
        )


def test_it_is_judged_again_when_it_is_changed_and_when_it_is_mounted(
    people: Any, manifest: Any, settings: Any
) -> None:
    settings.NFS_SERVERS = ["10.20.0.7:/data"]
    store = create_datastore(manifest("nfs", {"nfs": NFS}), acting_user=people.bob)
    with pytest.raises(Invalid):
        change_datastore(store, manifest("nfs", {"nfs": {**NFS, "path": "/"}}), acting_user=people.bob)
    assert source_for(store).fields["server"] == "10.20.0.7"
    settings.NFS_SERVERS = ["10.20.0.8"]
    with pytest.raises(SourceError, match=r"Datastore nfs: .* does not allow 10\.20\.0\.7:/data; allowed here: 10"):
        source_for(store)
