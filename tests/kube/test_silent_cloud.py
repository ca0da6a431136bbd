"""What is told of an API server that is silent, does not know us, or repeats what it was sent."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from clusters.clouds.base import CloudRefused
from clusters.clouds.kubernetes.client import Client, said
from tests.kube.following import cloud_of
from tests.kube.plane import Plane
from tests.kube.plans import plan, role, run_ref

SECRET = "do-not-tell-anybody"


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
    # Without causes, and as whatever stands before the API server may say it.
    assert said({"message": f'it is bad: Invalid value: "{SECRET}": no'}) == "it is bad: invalid value"


@pytest.mark.kube
def test_what_cannot_be_changed_is_told_without_the_environment(plane: Plane) -> None:
    cloud = cloud_of(plane, f"test-{secrets.token_hex(4)}")
    run = run_ref(f"line-{secrets.token_hex(4)}")
    try:
        cloud.apply(plan(role("master", env={"PASSWORD": SECRET}), run=run))
        with pytest.raises(CloudRefused) as told:
            cloud.apply(plan(role("master", env={"PASSWORD": SECRET, "MORE": "1"}), run=run))
    finally:
        plane.request("DELETE", f"/api/v1/namespaces/{run.namespace}")
    assert "spec.template: field is immutable" in str(told.value)
    assert SECRET not in str(told.value)
    assert "PASSWORD" not in str(told.value)
