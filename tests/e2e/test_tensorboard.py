"""TensorBoard as users meet it: one click from a running training, the real TensorBoard, and curves that grow while open."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.test_applications import LATE, asked, host_of, sign_in, visiting
from tests.running import Client, Portal, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("applications"), pytest.mark.usefixtures("without_show1")]
# Writes and flushes a step every 0.5 s in a folder of its own, next to checkpoints, which TensorBoard does not read.
TRAIN = """cat > /tmp/train.py <<'END'
import time
from tensorboard.summary import Writer
writer = Writer("/elearn/output/summaries")
for step in range(2000):
    writer.add_scalar("loss", 1 / (1 + step), step=step)
    writer.flush()
    with open(f"/elearn/output/ckpt-{step // 20}", "w") as file:
        file.write("large")
    time.sleep(0.5)
END
exec python /tmp/train.py"""
# Returns the last step of each run that TensorBoard knows.
STEPS = """async () => {
    const get = async path => (await fetch(path)).json()
    const tags = await get('/data/plugin/scalars/tags'), last = {}
    for (const run of Object.keys(tags)) {
        const values = await get(`/data/plugin/scalars/scalars?tag=loss&run=${encodeURIComponent(run)}`)
        last[run] = values[values.length - 1][1]
    }
    return last
}"""
VOLUME = {"volume": {"size": "1Gi", "access_mode": "ReadWriteMany"}}


@pytest.fixture(scope="module")
def train(portal_up: Portal) -> str:
    """Creates a cluster whose second run trains and stores its output in S3."""
    alice = Client(portal_up, "alice")
    path = alice.create("ops-demo", "learn", **_spec(output="demo-output"))
    _running(alice, path)
    stored = "/appcodes/ops-demo/datastores/demo-output/files?path=learn/1&below=true&search=tfevents"
    assert eventually(lambda: alice.call("GET", stored)["items"], 120)
    alice.call("POST", f"{path}/disable")
    assert eventually(lambda: alice.call("GET", path)["status"]["phase"] == "Stopped", 120)
    alice.call("POST", f"{path}/deploy")
    _running(alice, path)
    return path


def test_one_click_shows_curves_that_grow(browser: Browser, portal_up: Portal, train: str) -> None:
    alice = Client(portal_up, "alice")
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{portal_up.origin}/clusters/ops-demo/learn/metrics")
        sign_in(page, portal_up, "alice")
        expect(page.locator("#tensorboard")).to_contain_text("an hour while it runs")
        expect(page.locator(".chart h2")).to_have_text("loss", timeout=LATE)  # the first steps are stored
        with context.expect_page() as opened:
            page.get_by_role("button", name="TensorBoard ▸").click()
        board = opened.value
        board.wait_for_url(f"http://{host_of(portal_up, 'tensorboard-tb-learn-2-ops-demo')}/**", timeout=LATE)
        expect(board.get_by_text("learn/2/summaries").first).to_be_visible(timeout=LATE)
        expect(board.get_by_text("loss").first).to_be_visible(timeout=LATE)
        first = _steps(board)
        assert list(first) == ["learn/2/summaries"]
        assert eventually(lambda: _steps(board)["learn/2/summaries"] > first["learn/2/summaries"] + 5, 60)
        assert alice.call("GET", "/appcodes/ops-demo/applications/tb-learn-2")["status"]["run"] == 1
        # A second click opens the same TensorBoard.
        expect(page.locator("#tensorboard")).to_contain_text("tb-learn-2 shows this run; so far", timeout=LATE)
        with context.expect_page() as again:
            page.get_by_role("button", name="Open TensorBoard ▸").click()
        again.value.wait_for_url(board.url.partition("#")[0] + "**", timeout=LATE)
        assert _named(alice) == ["tb-learn-2"]


def test_two_runs_are_compared(browser: Browser, portal_up: Portal, train: str) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{portal_up.origin}/clusters/ops-demo/learn/runs")
        sign_in(page, portal_up, "bob")
        for number in (1, 2):
            page.get_by_label(f"Select learn/{number}").check()
        with context.expect_page() as opened:
            page.get_by_role("button", name="Compare in TensorBoard ▸").click()
        board = opened.value
        board.wait_for_url("**tensorboard-tb-learn-1-and-1-ops-demo**", timeout=LATE)
        for number in (1, 2):
            expect(board.get_by_text(f"learn/{number}/summaries").first).to_be_visible(timeout=LATE)
        assert sorted(_steps(board)) == ["learn/1/summaries", "learn/2/summaries"]


def test_a_volume_is_mounted_and_needs_no_copy(browser: Browser, portal_up: Portal) -> None:
    alice = Client(portal_up, "alice")
    store = {"metadata": {"name": "learned", "appcode": "ops-demo"}, "spec": VOLUME}
    alice.call("POST", "/appcodes/ops-demo/datastores", store)
    path = alice.create("ops-demo", "keeps", **_spec(output="learned"))
    _running(alice, path)
    made = alice.call("POST", f"{path}/tensorboard")
    assert made["spec"]["runs"] == ["keeps/1"]
    label = made["status"]["endpoints"][0]["url"].partition("//")[2].partition(".")[0]
    with visiting(browser, portal_up, "victor", label, "/") as board:  # a viewer may open it
        board.wait_for_url(f"http://{host_of(portal_up, label)}/**", timeout=LATE)
        expect(board).to_have_title("TensorBoard: keeps/1", timeout=LATE)
        assert eventually(lambda: _steps(board), 60)
        first = _steps(board)["keeps/1/summaries"]
        assert eventually(lambda: _steps(board)["keeps/1/summaries"] > first, 60)


def test_an_outsider_gets_nothing(browser: Browser, portal_up: Portal, train: str) -> None:
    alice = Client(portal_up, "alice")
    alice.call("POST", f"{train}/tensorboard")
    host = host_of(portal_up, "tensorboard-tb-learn-2-ops-demo")
    with visiting(browser, portal_up, "mallory", "tensorboard-tb-learn-2-ops-demo", "/") as page:
        expect(page.get_by_text("nothing at this address that you may open")).to_be_visible()
    status, _, text = asked(portal_up, host, "/data/runs", {"Accept": "application/json"})
    assert (status, "learn" in text) == (401, False)


def _spec(**more: Any) -> dict[str, Any]:
    roles = {"master": {"flavor": "small"}}
    return {"framework": "tensorflow", "image": "tensorflow-2-21", "command": TRAIN, "roles": roles, **more}


def _running(client: Client, path: str) -> None:
    assert eventually(lambda: client.call("GET", path)["status"]["phase"] == "Running", 120), client.call("GET", path)


def _steps(board: Page) -> dict[str, int]:
    found: dict[str, int] = board.evaluate(STEPS)
    return found


def _named(client: Client) -> list[str]:
    items = client.call("GET", "/appcodes/ops-demo/applications")["items"]
    return sorted(each["metadata"]["name"] for each in items if each["spec"]["type"] == "tensorboard")
