"""Registration of a Kubernetes cluster: any server may answer at the address."""

import pytest

from clusters.clouds.drivers.base import CloudError
from clusters.clouds.drivers.kubernetes.api import kueue
from clusters.clouds.drivers.kubernetes.api.client import Client
from clusters.clouds.drivers.kubernetes.api.lookup import overlooked_autoscaler
from clusters.clouds.drivers.kubernetes.api.preflight import inspect
from clusters.clouds.drivers.kubernetes.settings import Settings


def client_of(server):
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "main",
        "contexts": [{"name": "main", "context": {"cluster": "one", "user": "me"}}],
        "clusters": [{"name": "one", "cluster": {"server": server}}],
        "users": [{"name": "me", "user": {"token": "abc"}}],
    }
    return Client.connect(config)


@pytest.mark.parametrize(
    ("status", "body"), [(200, b"<html>Welcome</html>"), (302, b""), (200, b"[]"), (200, b"{}"), (200, b"null")]
)
def test_a_web_server_is_no_kubernetes_cluster(answers, status, body):
    with pytest.raises(CloudError, match="not the API server of a Kubernetes cluster"):
        inspect(client_of(answers(status, body)), ())


NOT_ALLOWED = b'{"message": "configmaps is forbidden: User me cannot list resource configmaps"}'


@pytest.mark.parametrize(
    ("status", "body", "found"),
    [
        (200, b'{"items": [{}]}', "This cluster has a cluster autoscaler, and"),
        (200, b'{"items": []}', "This cluster has Karpenter, and"),  # its API group is there
        (404, b"404 page not found", ""),
        (403, NOT_ALLOWED, ""),
    ],
)
def test_an_autoscaler_that_would_never_hear_of_a_waiting_run_is_told(answers, status, body, found):
    client = client_of(answers(status, body))
    told = overlooked_autoscaler(client, Settings())
    assert told.startswith(found)
    assert bool(told) == bool(found)
    for settings in (Settings(nodes_on_demand=True), Settings(kueue_queue="gpus")):
        assert overlooked_autoscaler(client, settings) == ""


SERVED = b'"versions": [{"version": "v1alpha1"}, {"version": "v1beta1"}], "preferredVersion": {"version": "v1beta1"}'
PENDING = b'"items": [{"metadata": {"name": "demo-3"}, "positionInClusterQueue": 2, "positionInLocalQueue": 0}]'


@pytest.mark.parametrize(
    ("status", "body", "version", "places"),
    [
        (200, b"{%s, %s}" % (SERVED, PENDING), "v1beta1", {"demo-3": 2}),
        (200, b'{"versions": [{"version": "v2"}], "preferredVersion": {"version": "v2"}, "items": []}', "v2", {}),
        (404, b"404 page not found", "", {}),
        (403, NOT_ALLOWED, "", {}),
    ],
)
def test_kueue_is_asked_in_a_version_that_it_serves_and_says_who_is_first(answers, status, body, version, places):
    client = client_of(answers(status, body))
    assert kueue.version_of(client) == version
    assert kueue.places(client, "ops", "gpus") == places
