"""What `make run` gives a newcomer: working credentials in a private file."""

import json
import urllib.request


def test_the_credentials_are_private_and_work(portal_up):
    assert (portal_up.data / "credentials.json").stat().st_mode & 0o777 == 0o600
    assert portal_up.credentials["url"] == portal_up.origin
    alice = portal_up.credentials["users"]["alice"]
    assert alice["role"] == "owner"
    request = urllib.request.Request(
        f"{portal_up.url}/api/v1/appcodes/ops-demo/clusters/show1",
        headers={"Authorization": f"Bearer {alice['token']}"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        assert json.load(response)["metadata"] == {"name": "show1", "appcode": "ops-demo"}
