"""Serving a model as users do: a run writes it, it is registered, served from its page, tried there, and called by a program with
a token for that service only. When the alias moves, a better version replaces it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.chain import ONE
from tests.e2e.test_applications import LATE, sign_in
from tests.running import Client, Portal, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("applications"), pytest.mark.usefixtures("without_show1")]

MODEL = """
class Model:
    inputs = [("x", "FP32", (-1, 2))]
    outputs = [("sum", "FP32", (-1,))]

    def __init__(self, folder):
        pass

    def predict(self, inputs):
        return {"sum": inputs["x"].sum(axis=1) + BIAS}
"""
MODELS = "/appcodes/ops-demo/models/adds"
SERVER = "/appcodes/ops-demo/applications/adds"


def registered(alice: Client, number: int) -> None:
    """Registers version `number` of the model, whose answers are larger by that number."""
    code = MODEL.replace("BIAS", str(number))
    command = f"mkdir /elearn/output/model && cat > /elearn/output/model/model.py <<'END'\n{code}END"
    roles = {"master": {"flavor": "middle"}}
    document = {
        "metadata": {"name": "writes-adds", "appcode": "ops-demo"},
        "spec": {**ONE, "command": command, "roles": roles},
    }
    if number == 1:
        alice.call("POST", "/appcodes/ops-demo/clusters", document)
        alice.call("POST", "/appcodes/ops-demo/models", {"metadata": {"name": "adds"}})
    else:
        alice.call("PUT", "/appcodes/ops-demo/clusters/writes-adds", document)
        alice.call("POST", "/appcodes/ops-demo/clusters/writes-adds/deploy")
    run = lambda: alice.call("GET", "/appcodes/ops-demo/clusters/writes-adds")["status"]  # noqa: E731
    assert eventually(lambda: (run()["run"], run()["phase"]) == (number, "Succeeded"), 120), run()
    said = {"run": f"writes-adds/{number}", "path": "model", "format": "python", "sample": {"instances": [[1, 2]]}}
    alice.call("POST", f"{MODELS}/versions", {"spec": said})
    assert eventually(lambda: alice.call("GET", f"{MODELS}/versions/{number}")["status"]["state"] == "Ready", 60)
    alice.call("PUT", f"{MODELS}/aliases/champion", {"version": number, "reason": f"Version {number}"})


def answers(alice: Client) -> bool:
    return bool(alice.call("GET", SERVER)["status"]["endpoints"][0]["ready"])


def asked(alice: Client, token: str, body: Any) -> tuple[int, Any]:
    (endpoint,) = alice.call("GET", SERVER)["status"]["endpoints"]
    host = endpoint["url"].removeprefix("http://").rstrip("/")
    headers = {"Host": host, "Content-Type": "application/json", "Authorization": f"token {token}"}
    request = urllib.request.Request(
        f"http://127.0.0.1:{host.rpartition(':')[2]}/v1/models/adds:predict", json.dumps(body).encode(), headers
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_model_is_served_and_a_better_one_takes_its_place(browser: Browser, portal_up: Portal) -> None:
    alice = Client(portal_up, "alice")
    registered(alice, 1)
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{portal_up.origin}/models/ops-demo/adds")
        sign_in(page, portal_up, "alice")
        page.locator("summary", has_text="Serve").first.click()
        page.get_by_role("link", name="As a model server").click()
        page.get_by_role("button", name="Next").click()
        expect(page.get_by_text("adds@champion").first).to_be_visible()
        page.get_by_role("button", name="Deploy").click()
        expect(page.get_by_role("heading", name="Ask it")).to_be_visible(timeout=LATE)
        assert eventually(lambda: answers(alice), 120)
        page.get_by_role("button", name="Ask", exact=True).click()
        expect(page.locator("#answer")).to_contain_text('{"predictions":[4.0]}', timeout=LATE)
        page.locator("#ask-body").fill('{"instances": [[1, 2, 3]]}')
        page.get_by_role("button", name="Ask", exact=True).click()
        expect(page.locator("#answer")).to_contain_text("its shape is [1, 3], and “x” takes [-1, 2]", timeout=LATE)

    token = alice.call("POST", f"{SERVER}/access/refresh")["token"]
    assert asked(alice, token, {"instances": [[1, 2], [3, 4]]}) == (200, {"predictions": [4.0, 8.0]})
    assert asked(alice, "x" + token[1:], {"instances": [[1, 2]]})[0] == 401
    with pytest.raises(urllib.error.HTTPError, match="409"):
        alice.call("DELETE", f"{MODELS}/versions/1")

    registered(alice, 2)
    alice.call("POST", f"{SERVER}/disable")
    assert eventually(lambda: alice.call("GET", SERVER)["status"]["phase"] == "Stopped", 60)
    alice.call("POST", f"{SERVER}/deploy")
    assert eventually(lambda: answers(alice), 120)
    assert asked(alice, token, {"instances": [[1, 2]]}) == (200, {"predictions": [5.0]})
