"""A sweep whose loop the test drives, with real processes."""

from __future__ import annotations

import pytest


@pytest.fixture
def sweep_manifest():
    """sweep_manifest("lr", command, parameters, trials=4, …) → SweepManifest in ops-demo; `template` replaces parts of it."""
    from clusters.sweeps.manifest import SweepManifest
    from portal.manifests import parse

    def make(name="lr", command="echo loss = {lr}", parameters=None, *, template=None, **spec):
        role = {"flavor": "small"}
        body = {"image": "python", "command": command, "roles": {"master": role}, "retries": 0, **(template or {})}
        usual = {
            "goal": {"metric": "loss"},
            "parameters": parameters or {"lr": {"type": "choice", "values": [3, 1, 2, 4]}},
        }
        document = {
            "kind": "sweep",
            "metadata": {"name": name, "appcode": "ops-demo"},
            "spec": {"template": body, "sampler": "grid", **usual, **spec},
        }
        return parse(SweepManifest, document)

    return make
