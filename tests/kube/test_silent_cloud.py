"""Error messages for an API server that is silent, rejects our credentials, or echoes what it was sent."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from clusters.clouds.drivers.base import CloudError, CloudRefused, RunRef
from clusters.clouds.drivers.kubernetes import logs
from clusters.clouds.drivers.kubernetes.api import client as kubernetes_client
from clusters.clouds.drivers.kubernetes.api import errors
from clusters.clouds.drivers.kubernetes.api.client import Client
from clusters.clouds.drivers.kubernetes.api.errors import STRANGER, said
from clusters.clouds.drivers.kubernetes.cloud import KubernetesCloud
from clusters.clouds.drivers.kubernetes.render import names
from clusters.clouds.drivers.kubernetes.settings import Settings
from tests.kube.following import cloud_of
from tests.kube.plane import Plane
from tests.kube.plans import plan, role, run_ref
from tests.silent import Silent, kubeconfig

SECRET = "do-not-tell-anybody"


@pytest.fixture
def silent() -> Iterator[Silent]:
    server = Silent()
    yield server
    server.close()


def test_one_asks_for_all_that_look_into_logs_of_a_server_that_is_silent(
    silent: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_client, "TIMEOUT", kubernetes_client.urllib3.Timeout(connect=1.0, read=1.0))
    monkeypatch.setattr(kubernetes_client, "TRY_SECONDS", 0.0)
    # Longer than this test takes on any machine.
    monkeypatch.setattr(logs, "AWAY", 600.0)
    cloud = KubernetesCloud(Client.connect(kubeconfig(silent.url)), Settings())
    for number in range(30):
        with pytest.raises(CloudError, match="does not answer"):
            cloud.log(RunRef(number + 1, "ops", "ops-demo", "mnist", 1), "master", 0, attempt=0)
    assert silent.asked == 1
    # Later one call tries again.
    cloud._pods._breaker.rest = 0.0
    with pytest.raises(CloudError, match="does not answer"):
        cloud.log(RunRef(1, "ops", "ops-demo", "mnist", 1), "master", 0, attempt=0)
    assert silent.asked == 2


def test_while_one_tries_whether_a_server_is_back_others_are_told_at_once(silent: Silent) -> None:
    cloud = KubernetesCloud(Client.connect(kubeconfig(silent.url)), Settings())
    breaker = cloud._pods._breaker
    breaker.rest = 0.0
    with pytest.raises(errors.Unavailable), breaker.call():
        raise errors.Unavailable("away")
    with breaker.call():
        with pytest.raises(CloudError, match="away"):
            cloud.log(RunRef(1, "ops", "ops-demo", "mnist", 1), "master", 0, attempt=0)
        assert silent.asked == 0
    with breaker.call(), breaker.call():
        """It has answered: everybody may ask."""


@pytest.fixture
def stranger() -> Iterator[str]:
    """A server that rejects every user, with the API server's answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"kind": "Status", "message": "Unauthorized", "reason": "Unauthorized", "code": 401})
            self.send_response(401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: Any) -> None:
            """Logs nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_credentials_that_are_not_accepted_any_more_are_told_with_what_to_do(stranger: str) -> None:
    with pytest.raises(CloudError) as told:
        Client.connect(kubeconfig(stranger)).get("/api/v1/nodes")
    assert str(told.value) == STRANGER
    assert "under Clouds" in STRANGER
    # The run itself is fine, so the error must allow a retry.
    assert not isinstance(told.value, CloudRefused)


def invalid(*causes: tuple[str, str]) -> dict[str, Any]:
    joined = ", ".join(f"{field}: {message}" for field, message in causes)
    return {
        "reason": "Invalid",
        "code": 422,
        "message": f'Job.batch "x" is invalid: [{joined}]',
        "details": {"causes": [{"field": field, "message": message} for field, message in causes]},
    }


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (f'Invalid value: {{"env":[{{"name":"A","value":"{SECRET}"}}]}}: field is immutable', "field is immutable"),
        (f'Invalid value: core.Pod{{Env:"}}: {SECRET}", X:(*int)(nil)}}: field is immutable', "field is immutable"),
        (f'Invalid value: core.Pod{{Env:"}}: {SECRET}"}}', "invalid value"),
        (f'Invalid value: "{SECRET}": must be an address', "must be an address"),
        (f'Invalid value: "\\x00}}: {SECRET}": must be an address', "invalid value"),
        (f'Invalid value: "{SECRET}"', "invalid value"),
        ("Invalid value: 5Gi: must be less than 4Gi", "must be less than 4Gi"),
        ("Invalid value: 7: must be less than 5", "must be less than 5"),
        (f'Unsupported value: "{SECRET}": supported values: "A", "B"', 'supported values: "A", "B"'),
        (f"Forbidden: may not change\n{{Env: {SECRET}}}", "Forbidden: may not change"),
        ("Required value: name it", "Required value: name it"),
    ],
)
def test_values_that_a_server_repeats_are_left_out(message: str, told: str) -> None:
    assert said(invalid(("spec.template", message))) == f"spec.template: {told}"


def test_sentences_of_servers_are_short_and_told_once() -> None:
    one = ("spec.a", "Required value")
    assert said(invalid(one, one, ("spec.b", "Forbidden: no"))) == "spec.a: Required value; spec.b: Forbidden: no"
    assert len(said({"message": "x" * 5000})) == 500
    # Without causes, as a proxy in front of the API server may answer.
    assert said({"message": f'it is bad: Invalid value: "{SECRET}": no'}) == "it is bad: invalid value"


@pytest.mark.kube
def test_what_cannot_be_changed_is_told_without_the_environment(plane: Plane) -> None:
    """Somebody made a Job with the name of one of ours; its template cannot be changed into ours."""
    cloud = cloud_of(plane, f"test-{secrets.token_hex(4)}")
    first = run_ref(f"line-{secrets.token_hex(4)}")
    run = run_ref(first.namespace)
    jobs = f"/apis/batch/v1/namespaces/{run.namespace}/jobs"
    try:
        cloud.apply(plan(role("master", env={"PASSWORD": SECRET}), run=first))
        job = plane.request("GET", f"{jobs}/{names.role_name(first, 'master')}")
        pod = {key: value for key, value in job["spec"]["template"].items() if key != "metadata"}
        made = {"metadata": {"name": names.role_name(run, "master")}, "spec": {"suspend": True, "template": pod}}
        plane.request("POST", jobs, made)
        with pytest.raises(CloudRefused) as told:
            cloud.apply(plan(role("master", env={"PASSWORD": SECRET, "MORE": "1"}), run=run))
    finally:
        plane.request("DELETE", f"/api/v1/namespaces/{run.namespace}")
    assert "field is immutable" in str(told.value)
    assert SECRET not in str(told.value)
    assert "PASSWORD" not in str(told.value)
