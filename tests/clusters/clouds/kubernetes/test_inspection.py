"""Registration of a Kubernetes cluster: any server may answer at the address."""

import pytest

from clusters.clouds.drivers.base import CloudError
from clusters.clouds.drivers.kubernetes.api.client import Client
from clusters.clouds.drivers.kubernetes.api.preflight import inspect


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
