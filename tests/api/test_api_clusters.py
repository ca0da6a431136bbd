"""Clusters over REST: what is sent, stored and returned."""

from __future__ import annotations

from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.api.client import Api, manifest

CLUSTERS = "/appcodes/ops-demo/clusters"


def test_a_created_cluster_is_answered_as_the_manifest_that_was_sent(as_alice: Api) -> None:
    status, made = as_alice.post(CLUSTERS, manifest())
    assert status == 201, made
    assert made["metadata"] == {"name": "show1", "appcode": "ops-demo"}
    assert made["spec"]["command"] == "python train.py"
    assert made["status"]["phase"] == "Queued"
    assert made["status"]["run"] == 1
    assert made["status"]["roles"] == {
        "master": {"ready": 0, "count": 1}, "ps": {"ready": 0, "count": 1}, "worker": {"ready": 0, "count": 2},
    }  # fmt: skip
    assert made["status"]["cost"]["currency"] == "USD"
    assert as_alice.last.headers["Location"] == "http://testserver/api/v1/appcodes/ops-demo/clusters/show1"
    status, read = as_alice.get(f"{CLUSTERS}/show1")
    assert (status, read["spec"]) == (200, made["spec"])


def test_creating_a_cluster_takes_eleven_statements_in_one_transaction(as_bob: Api) -> None:
    # The first request of a minute also stores when the token was last used.
    assert as_bob.post(CLUSTERS, manifest("first"))[0] == 201
    with CaptureQueriesContext(connection) as queries:
        assert as_bob.post(CLUSTERS, manifest("second"))[0] == 201
    said = [query["sql"] for query in queries]
    # Savepoints instead of BEGIN and COMMIT, because the test runs in a transaction.
    begin_and_end = [text for text in said if text.startswith(("SAVEPOINT", "RELEASE"))]
    assert len(begin_and_end) == 2, begin_and_end
    # One of them finds the colour of the run before it.
    assert len(said) - 2 <= 11, said
