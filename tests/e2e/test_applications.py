"""Applications as users and attackers meet them: the whole portal, the real gateway, real JupyterLab, a real browser.

Each application has its own origin. The web program of these tests echoes what reached it, which also shows what did not.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

import psutil
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect
from playwright.sync_api import TimeoutError as NotYet
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.index import PASSWORD, TREE
from tests.running import Client, Portal, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("applications"), pytest.mark.usefixtures("without_show1")]
LATE = 120_000
SOCKET = {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version": "13"}
# Returns the request headers it received, and a small page for browsers.
ECHO = """cat > /tmp/echo.py <<'END'
import http.server, json, os
class Echo(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = json.dumps({"path": self.path, "headers": dict(self.headers.items())}).encode()
        page = self.path.startswith("/page")
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if page else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_POST = do_GET
http.server.ThreadingHTTPServer((os.environ["HOST"], int(os.environ["PORT"])), Echo).serve_forever()
END
exec python /tmp/echo.py"""
# The cell continues when the test creates go.txt, however slow the machine is.
CELL = """import pathlib, time
print('begun', flush=True)
while not pathlib.Path('go.txt').exists():
    time.sleep(0.1)
print('over')"""
NOTEBOOK = {
    "cells": [
        {
            "cell_type": "code",
            "id": "one",
            "metadata": {},
            "execution_count": None,
            "outputs": [],
            "source": CELL,
        }
    ],
    "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    "nbformat": 4,
    "nbformat_minor": 5,
}


def host_of(portal: Portal, label: str) -> str:
    return f"{label}.apps.localhost:{portal.port}"


def ready(portal: Portal, path: str, person: str = "alice") -> None:
    client = Client(portal, person)

    def is_ready() -> bool:
        found = client.call("GET", path)["status"].get("endpoints", [])
        return bool(found) and all(each["ready"] for each in found)

    assert eventually(is_ready, 120), client.call("GET", path)["status"]


@pytest.fixture(scope="module")
def echo(portal_up: Portal) -> str:
    """Returns the origin label of a web program in ops-demo."""
    alice = Client(portal_up, "alice")
    roles = {"server": {"flavor": "small", "endpoints": [{"name": "web", "port": 8080}]}}
    path = alice.create("ops-demo", "echo", framework="web", image="tensorflow-2-21", command=ECHO, roles=roles)
    ready(portal_up, path)
    return "web-echo-ops-demo"


@pytest.fixture(scope="module")
def lab(portal_up: Portal) -> str:
    """Returns the origin label of a notebook in ops-demo."""
    alice = Client(portal_up, "alice")
    volume = {"metadata": {"name": "lab-home", "appcode": "ops-demo"}, "spec": {"volume": {"size": "1Gi"}}}
    alice.call("POST", "/appcodes/ops-demo/datastores", volume)
    images = alice.call("GET", "/images")["items"]
    image = next(each["name"] for each in images if each["name"].startswith("jupyter"))
    roles = {"notebook": {"flavor": "middle"}}
    path = alice.create("ops-demo", "lab", framework="jupyter", image=image, home="lab-home", roles=roles)
    ready(portal_up, path)
    return "notebook-lab-ops-demo"


@contextlib.contextmanager
def visiting(browser: Browser, portal: Portal, person: str, label: str, path: str = "/page") -> Iterator[Page]:
    """Opens the application's origin in a browser of `person` and signs in at the portal on the way."""
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"http://{host_of(portal, label)}{path}")
        sign_in(page, portal, person)
        yield page


def sign_in(page: Page, portal: Portal, person: str) -> None:
    page.locator("[name=login]").fill(person)
    page.locator("[name=password]").fill(portal.credentials["users"][person]["password"])
    page.get_by_role("button", name="Sign in").click()


def asked(
    portal: Portal,
    host: str,
    path: str = "/",
    headers: Mapping[str, str] | None = None,
    method: str = "GET",
    body: str | None = None,
) -> tuple[int, Mapping[str, str], str]:
    """Returns status, headers and text of one answer of the gateway, without following redirects."""
    connection = http.client.HTTPConnection("127.0.0.1", portal.port, timeout=30)
    with contextlib.closing(connection):
        connection.request(method, path, body, headers={"Host": host, **(headers or {})})
        answer = connection.getresponse()
        return answer.status, dict(answer.headers.items()), answer.read().decode(errors="replace")


def cookie_of(context: BrowserContext, host: str) -> str:
    return next(each["value"] for each in context.cookies(f"http://{host}") if each["name"] == "portal-app")  # type: ignore[typeddict-item]


def test_a_person_gets_there_by_the_portal_and_the_program_learns_no_secret_of_it(
    browser: Browser, portal_up: Portal, echo: str
) -> None:
    host = host_of(portal_up, echo)
    with visiting(browser, portal_up, "bob", echo, "/page?a=1&b=%2F") as page:
        page.wait_for_url(f"http://{host}/page?a=1&b=%2F")
        seen = json.loads(page.inner_text("body"))
        cookie = cookie_of(page.context, host)
        assert seen["headers"]["X-Portal-User"] == "bob"
        assert seen["headers"]["Host"] == host
        page.evaluate("document.cookie = 'mine=1'")
        # Programs that read headers as CGI variables cannot tell the second from the first.
        lies = "{headers: {'X-Portal-User': 'root', 'X_Portal_User': 'root'}}"
        again = page.evaluate(f"async () => (await fetch('/x', {lies})).json()")
        assert again["headers"]["Cookie"] == "mine=1"
        assert again["headers"]["X-Portal-User"] == "bob"
        told = json.dumps([seen, again])
        for secret in (
            cookie,
            "portal-app",
            "sessionid",
            "csrftoken",
            portal_up.secret("PORTAL_GATEWAY_SECRET"),
            "root",
        ):
            assert secret not in told
        # Pages of the application cannot use the portal: the browser sends no portal cookie and hides the answer.
        get = "async url => { try { return (await fetch(url, {credentials: 'include'})).status } catch (e) { return String(e) } }"
        outcome = page.evaluate(get, f"{portal_up.origin}/api/v1/clusters")
        assert "TypeError" in outcome


def test_who_may_not_open_it_gets_nothing(browser: Browser, portal_up: Portal, echo: str, lab: str) -> None:
    with visiting(browser, portal_up, "mallory", echo) as page:
        expect(page.get_by_text("nothing at this address that you may open")).to_be_visible()
    with visiting(browser, portal_up, "victor", echo) as page:  # a viewer may open what runs none of their code
        page.wait_for_url("**/page")
    with visiting(browser, portal_up, "victor", lab, "/lab") as page:
        expect(page.get_by_text("nothing at this address that you may open")).to_be_visible()


def test_stolen_and_foreign_things_open_nothing(browser: Browser, portal_up: Portal, echo: str, lab: str) -> None:
    here, there = host_of(portal_up, echo), host_of(portal_up, lab)
    with visiting(browser, portal_up, "alice", echo) as page:
        page.wait_for_url("**/page")
        cookie = f"portal-app={cookie_of(page.context, here)}"
        portals = "; ".join(
            f"{each['name']}={each['value']}"  # type: ignore[typeddict-item]
            for each in page.context.cookies(portal_up.origin)
        )
    token = portal_up.credentials["users"]["alice"]["token"]
    own = f"http://{here}"
    # First the right origin; then the cookie on another application, on the portal, and from a foreign page.
    assert asked(portal_up, here, headers={"Cookie": cookie})[0] == 200
    assert asked(portal_up, here, headers={"Cookie": cookie, "Origin": own}, method="POST")[0] == 200
    refused: list[tuple[str, dict[str, str], str]] = [
        (there, {"Cookie": cookie}, "GET"),
        (here, {}, "GET"),
        (here, {"Cookie": portals}, "GET"),
        (here, {"Authorization": f"Bearer {token}"}, "GET"),
        (here, {"Cookie": cookie, "Origin": f"http://{there}"}, "POST"),
        (here, {"Cookie": cookie}, "POST"),
        (here, {"Cookie": cookie, "Origin": "null"}, "GET"),
        (here, {"Cookie": cookie, "Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}, "GET"),
        (here, {"Cookie": cookie, "Upgrade": "websocket", "Connection": "Upgrade", "Origin": f"http://{there}"}, "GET"),
        # A WebSocket handshake without the Origin that every browser sends.
        (here, {"Cookie": cookie, "Upgrade": "websocket", "Connection": "Upgrade", **SOCKET}, "GET"),
        (here, {"X-Portal-User": "alice", "X-Forwarded-Host": here, "X-Forwarded-User": "alice"}, "GET"),
        (here, {"X-Portal-Gateway": "guess"}, "GET"),
    ]
    for host, headers, method in refused:
        status, _, text = asked(portal_up, host, "/x", headers, method)
        assert status in (401, 403), (host, headers, status)
        assert '"headers"' not in text
    # Host names and paths that two programs might parse differently.
    for path in ("/.portal/", "/.portal/routed", "/.portal/ticket?ticket=x"):
        status, _, text = asked(portal_up, here, path, {"Cookie": cookie})
        assert status in (302, 400, 404), path
        assert '"headers"' not in text
    for host in (
        f"{echo}.apps.localhost.evil.example",
        f"{echo}.localhost:{portal_up.port}",
        f"x.{here}",
        f"{echo}.apps.localhost:1",
    ):
        status, _, text = asked(portal_up, host, "/x", {"Cookie": cookie})
        assert status >= 400, host
        assert '"headers"' not in text
    # An application's host name serves no page of the portal and accepts no session of it.
    status, _, text = asked(
        portal_up, f"none-none-none.apps.localhost:{portal_up.port}", "/api/v1/clusters", {"Cookie": portals}
    )
    assert status == 401
    assert "items" not in text
    # Only the gateway may call /gateway/judge.
    assert (
        asked(portal_up, f"localhost:{portal_up.port}", "/gateway/judge", {"X-Forwarded-Host": here, "Cookie": cookie})[
            0
        ]
        == 404
    )


def test_a_program_comes_in_with_the_token_of_one_application(portal_up: Portal, echo: str, lab: str) -> None:
    alice = Client(portal_up, "alice")
    here, there = host_of(portal_up, echo), host_of(portal_up, lab)
    path = "/appcodes/ops-demo/applications/echo/access"
    token = alice.call("POST", f"{path}/refresh")["token"]
    status, _, text = asked(portal_up, here, "/x", {"Authorization": f"token {token}"})
    assert status == 200
    assert token not in text
    assert "X-Portal-User" not in json.loads(text)["headers"]
    assert asked(portal_up, there, "/api", {"Authorization": f"token {token}"})[0] == 401
    assert (
        asked(portal_up, f"localhost:{portal_up.port}", "/api/v1/clusters", {"Authorization": f"Bearer {token}"})[0]
        == 401
    )
    newer = alice.call("POST", f"{path}/refresh")["token"]
    assert eventually(lambda: asked(portal_up, here, "/x", {"Authorization": f"token {token}"})[0] == 401, 10)
    assert alice.call("GET", path)["token"] == newer
    alice.call("POST", f"{path}/stop")
    assert eventually(lambda: asked(portal_up, here, "/x", {"Authorization": f"token {newer}"})[0] == 401, 10)


def printed(portal: Portal, host: str, token: str, code: str, kernel: str = "python3") -> str:
    """Runs a cell in a new kernel, as an editor does, and returns what it prints: creates the kernel over REST and uses its
    channels over WebSocket, with the token in each request."""
    authorization = {"Authorization": f"token {token}"}
    status, _, text = asked(portal, host, "/api/kernels", authorization, "POST", json.dumps({"name": kernel}))
    assert status == 201, text
    header = {"msg_id": "1", "username": "", "session": "editor", "msg_type": "execute_request", "version": "5.3"}
    content = {"code": code, "silent": False}
    request = {
        "header": header,
        "parent_header": {},
        "metadata": {},
        "content": content,
        "channel": "shell",
        "buffers": [],
    }
    address = f"ws://{host}/api/kernels/{json.loads(text)['id']}/channels?session_id=editor&token="

    def opened(token: str, **options: Any) -> ClientConnection:
        return connect(address + token, sock=socket.create_connection(("127.0.0.1", portal.port), 30), **options)

    with pytest.raises(InvalidStatus, match="401"):
        opened("another")
    with opened(token, additional_headers=authorization) as channels:
        channels.send(json.dumps(request))
        text = ""
        while True:
            said = json.loads(channels.recv(timeout=60))
            kind, told = said["header"]["msg_type"], said["content"]
            text += told["text"] if kind == "stream" else ""
            if kind == "status" and told["execution_state"] == "idle" and said["parent_header"].get("msg_id") == "1":
                return text


def test_a_desktop_editor_runs_a_cell_with_the_token_of_the_notebook(portal_up: Portal, lab: str) -> None:
    token = Client(portal_up, "alice").call("POST", "/appcodes/ops-demo/applications/lab/access/refresh")["token"]
    assert printed(portal_up, host_of(portal_up, lab), token, "print(6 * 7)") == "42\n"


def test_signing_out_closes_the_application(browser: Browser, portal_up: Portal, echo: str) -> None:
    host = host_of(portal_up, echo)
    with visiting(browser, portal_up, "bob", echo) as page:
        page.wait_for_url("**/page")
        cookie = {"Cookie": f"portal-app={cookie_of(page.context, host)}"}
        assert asked(portal_up, host, "/x", cookie)[0] == 200
        page.goto(portal_up.origin)
        page.locator("summary", has=page.locator(".avatar")).click()
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_load_state()
        assert eventually(lambda: asked(portal_up, host, "/x", cookie)[0] == 401, 10)


def test_cells_go_on_when_the_browser_closes_and_the_home_outlives_the_run(
    browser: Browser, portal_up: Portal, lab: str
) -> None:
    alice, path = Client(portal_up, "alice"), "/appcodes/ops-demo/clusters/lab"
    base = f"http://{host_of(portal_up, lab)}"
    plain = "/static/favicons/favicon.ico"  # an image's page allows our requests, a JSON answer does not
    with visiting(browser, portal_up, "alice", lab, plain) as page:
        page.wait_for_url(f"{base}{plain}")
        assert page.evaluate("async () => (await (await fetch('/api/me')).json()).identity.username") == "alice"
        body = json.dumps({"type": "notebook", "format": "json", "content": NOTEBOOK})
        write = "async ([name, body]) => (await fetch(`/api/contents/${name}`, {method: 'PUT', body})).ok"
        page.evaluate("async () => await fetch('/api/contents/go.txt', {method: 'DELETE'})")  # of an earlier try
        assert page.evaluate(write, ["work.ipynb", body])
        # On a busy machine JupyterLab asks whether to wait; dismiss that.
        page.add_locator_handler(page.locator(".jp-Dialog"), lambda dialog: dialog.locator("button").last.click())
        page.goto(f"{base}/lab/tree/work.ipynb")
        page.wait_for_selector(".jp-Notebook .cm-content", timeout=LATE)
        expect(page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]")).to_be_visible(timeout=LATE)
        run_first_cell(page)
        page.wait_for_selector(".jp-OutputArea-output:has-text('begun')", timeout=LATE)
        other = page.context.new_page()
        page.close()  # while the cell is running
        other.goto(f"{base}{plain}")
        busy = (
            "async () => (await (await fetch('/api/kernels')).json()).some(kernel => kernel.execution_state == 'busy')"
        )
        assert other.evaluate(busy)
        assert other.evaluate(write, ["go.txt", json.dumps({"type": "file", "format": "text", "content": ""})])
        assert eventually(lambda: not other.evaluate(busy), 60)
        other.goto(f"{base}/lab/tree/work.ipynb")
        expect(other.locator(".jp-OutputArea-output").first).to_contain_text("begun\nover", timeout=LATE)
        other.keyboard.press("Control+S")

        # Kill the gateway, the web server and the portal's forwarder: open connections must reconnect automatically.
        for pid, line in portal_up.programs().items():
            if "traefik" in line or "gunicorn" in line:
                psutil.Process(pid).kill()
        answers = "async () => { try { return (await fetch('/api/me')).status } catch (e) { return 0 } }"
        assert eventually(lambda: other.evaluate(answers) == 200, 60)

        alice.call("POST", f"{path}/disable")
        assert eventually(lambda: alice.call("GET", path)["status"]["phase"] == "Stopped", 60)
        other.goto(f"{base}/lab")
        expect(other.get_by_role("status")).to_contain_text("lab: Stopped")
        alice.call("POST", f"{path}/deploy")
        other.goto(f"{base}/lab/tree/work.ipynb")  # first the start page, which then opens the notebook
        expect(other.locator(".jp-OutputArea-output").first).to_contain_text("over", timeout=LATE)


def test_no_task_reaches_an_endpoint_but_by_the_gateway(portal_up: Portal, echo: str) -> None:
    """Neither the program's port nor the one that leads to it is reachable from another tenant's task."""
    mallory = Client(portal_up, "mallory")
    routes = json.loads((portal_up.data / "gateway" / "endpoints.yaml").read_text())
    (server,) = routes["http"]["services"][f"app-{echo}"]["loadBalancer"]["servers"]
    ports = [8080, urllib.parse.urlsplit(server["url"]).port, portal_up.port]
    tries = "; ".join(f"(exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo reached" for port in ports)
    spec: dict[str, Any] = {"image": "tensorflow-2-21", "roles": {"master": {"flavor": "small"}}, "retries": 0}
    path = mallory.create("flight-demo", "reach", command=f"{tries}; echo tried", **spec)
    assert eventually(lambda: mallory.call("GET", path)["status"]["phase"] == "Succeeded", 120), mallory.call(
        "GET", path
    )
    log = next(
        each.read_text()
        for each in (portal_up.data / "cloud" / "runs").glob("*/tasks/master-0-0/log")
        if "tried" in each.read_text()
    )
    assert "reached" not in log
    # The program's own port is not open on the machine either.
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", 8080), 5)


def test_no_datastore_repository_or_webhook_is_a_port_of_the_portals_own_machine(portal_up: Portal, echo: str) -> None:
    """Tries every port on which this portal listens, including that of another tenant's program."""
    assert portal_up.process is not None
    mallory = Client(portal_up, "mallory")
    programs = {each.pid for each in psutil.Process(portal_up.process.pid).children(recursive=True)}
    routes = json.loads((portal_up.data / "gateway" / "endpoints.yaml").read_text())
    (server,) = routes["http"]["services"][f"app-{echo}"]["loadBalancer"]["servers"]
    found = [each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
    listening = {each.laddr.port for each in found if each.pid in programs}
    listening |= {urllib.parse.urlsplit(server["url"]).port, portal_up.port}
    listening -= {json.loads((portal_up.data / "ports.json").read_text())["storage"]}
    assert len(listening) > 4, "gateway, web server, router, the store and its door"
    keys = {"access_key": "a" * 20, "secret_key": "s" * 40, "bucket": "contents"}
    roles = {"master": {"flavor": "small"}}
    for port in listening:
        url = f"http://127.0.0.1:{port}"
        wishes: tuple[tuple[str, str, dict[str, Any]], ...] = (
            ("datastore", "datastores", {"s3": {"server": url, **keys}}),
            (
                "cluster",
                "clusters",
                {"image": "tensorflow-2-21", "command": "true", "roles": roles, "code": {"git": f"{url}/a.git"}},
            ),
            ("webhook", "webhooks", {"url": url, "events": ["*"]}),
        )
        for kind, path, spec in wishes:
            named = {"name": "inside"} if kind == "webhook" else {"name": "inside", "appcode": "flight-demo"}
            with pytest.raises(urllib.error.HTTPError) as refused:
                mallory.call("POST", f"/appcodes/flight-demo/{path}", {"kind": kind, "metadata": named, "spec": spec})
            assert refused.value.code == 422
            assert "is a port of the portal's own machine" in refused.value.__notes__[0], (port, kind)


def test_who_needs_a_notebook_keeps_it_inside_and_another_is_stopped_and_resumed(
    browser: Browser, portal_up: Portal, lab: str
) -> None:
    alice = Client(portal_up, "alice")
    image = alice.call("GET", "/appcodes/ops-demo/applications/lab")["spec"]["image"]
    paths = {name: f"/appcodes/ops-demo/applications/{name}" for name in ("kept", "left")}

    def start(name: str) -> None:
        spec = {
            "type": "jupyter", "image": image, "flavor": "small", "storage": {"size": "1Gi"},
            "idle": {"policy": "stop", "after": 60},
        }  # fmt: skip
        alice.call("POST", "/appcodes/ops-demo/applications", {"metadata": {"name": name}, "spec": spec})
        ready(portal_up, paths[name])

    def status(name: str) -> Any:
        return alice.call("GET", paths[name])["status"]

    def is_announced() -> bool:
        return any(each["type"] == "IdleStop" for each in status("kept")["conditions"])

    start("left")
    with visiting(browser, portal_up, "alice", "notebook-left-ops-demo", "/lab") as page:
        page.wait_for_url("**/lab*", timeout=LATE)
        file = json.dumps({"type": "file", "format": "text", "content": "x"})
        made = "body => fetch('/api/contents/kept.txt', {method: 'PUT', body}).then(answer => answer.status)"
        assert page.evaluate(made, file) == 201
    # Start it only now: its minute without work begins when it is ready.
    start("kept")
    with visiting(browser, portal_up, "alice", "notebook-kept-ops-demo", "/lab") as page:
        expect(page.locator(".jp-Launcher").first).to_be_visible(timeout=LATE)
        # The open page polls the server, which does not count as work.
        assert eventually(is_announced, 120), status("kept")
        page.reload()
        expect(page.get_by_text("does nothing and will be stopped").first).to_be_visible(timeout=LATE)
        page.get_by_role("button", name="Keep").first.click()
        expect(page.get_by_text("It is kept").first).to_be_visible(timeout=LATE)
    assert not is_announced()
    assert eventually(lambda: status("left")["phase"] == "Stopped", 120), status("left")
    assert status("left")["reason"] == "Idle"
    assert status("kept")["phase"] == "Running"
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{portal_up.origin}/applications/ops-demo/left")
        sign_in(page, portal_up, "alice")
        expect(page.get_by_text("Stopped after 1 minute without work.").first).to_be_visible(timeout=LATE)
        page.get_by_role("button", name="Re-Deploy").first.click()
        ready(portal_up, paths["left"])
    with visiting(browser, portal_up, "alice", "notebook-left-ops-demo", "/api/contents/kept.txt?content=1") as page:
        # The first answer is a page that redirects itself.
        expect(page.locator("body")).to_contain_text('"content": "x"', timeout=LATE)
    for name in paths:
        alice.call("POST", f"{paths[name]}/disable")


def test_what_was_installed_is_saved_for_others_and_a_broken_package_keeps_nobody_out(
    browser: Browser, portal_up: Portal, lab: str
) -> None:
    alice, path = Client(portal_up, "alice"), "/appcodes/ops-demo/applications/lab"
    portal_up.index.add("greeting", "1.0", greeting="TEXT = 'hello from the index'")
    portal_up.index.add("tornado", "99.0", tornado="raise SystemExit('broken')")
    ready(portal_up, path)
    token = alice.call("POST", f"{path}/access/refresh")["token"]
    cell = "%pip install -q greeting\nimport greeting\nprint(greeting.TEXT)"
    assert "hello from the index" in printed(portal_up, host_of(portal_up, lab), token, cell)
    with visiting(browser, portal_up, "alice", lab, "/lab") as page:
        page.wait_for_url(f"http://{host_of(portal_up, lab)}/lab**")
        page.goto(f"{portal_up.origin}/applications/ops-demo/lab")
        page.get_by_role("link", name="Save environment…").click()
        expect(page.get_by_role("row", name="greeting 1.0 not there")).to_be_visible()
        page.get_by_label("Name").fill("hello")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("heading", name="hello version 1")).to_be_visible()
        page.get_by_role("link", name="New notebook from it").click()
        expect(page.get_by_label("Environment optional")).to_have_value("hello:1")

        kept = alice.call("GET", "/appcodes/ops-demo/environments/hello")
        assert [(each["name"], each["was"]) for each in kept["status"]["packages"]] == [("greeting", "")]
        again = alice.call("POST", f"{path}/environment", {"metadata": {"name": "hello"}})
        assert again["metadata"]["version"] == 1
        command = "python -c 'import greeting, numpy; print(greeting.TEXT)'"
        spec: dict[str, Any] = {"image": kept["spec"]["image"], "environment": "hello", "command": command}
        trains = alice.create("ops-demo", "greets", roles={"master": {"flavor": "small"}}, retries=0, **spec)
        assert eventually(lambda: alice.call("GET", trains)["status"]["phase"] == "Succeeded", 120), alice.call(
            "GET", trains
        )

        # JupyterLab itself and the plain kernel do not use the environment's packages.
        with pytest.raises(urllib.error.HTTPError, match="409"):
            alice.call("DELETE", "/appcodes/ops-demo/environments/hello")
        run = alice.call("GET", path)["status"]["run"]
        exec_path = f"/appcodes/ops-demo/clusters/lab/runs/{run}/tasks/notebook/0/exec"
        argv = ["bash", "-c", '"$PORTAL_LAYER/bin/pip" install -q --no-deps tornado==99.0']
        said = portal_exec(portal_up, exec_path, argv)
        assert '"exit_code":0' in said, said
        alice.call("POST", f"{path}/disable")
        assert eventually(lambda: alice.call("GET", path)["status"]["phase"] == "Stopped", 60)
        alice.call("POST", f"{path}/deploy")
        ready(portal_up, path)
        page.goto(f"http://{host_of(portal_up, lab)}/lab")
        expect(page.locator("#jp-MainMenu")).to_be_visible(timeout=LATE)
        specs = page.evaluate("async () => (await (await fetch('/api/kernelspecs')).json())")
        titles = {name: spec["spec"]["display_name"] for name, spec in specs["kernelspecs"].items()}
        assert (specs["default"], titles) == (
            "python3",
            {"python3": "Python (environment)", "image": "Python (plain image)"},
        )
        asks = "import tornado; print(tornado.version)"
        assert not printed(portal_up, host_of(portal_up, lab), token, asks, "image").startswith("99")
        said = portal_exec(portal_up, exec_path.replace(f"runs/{run}", f"runs/{run + 1}"), [
            "bash", "-c", '"$PORTAL_LAYER/bin/python" -c "import tornado"; rm -r "$PORTAL_LAYER"/lib/*/site-packages/tornado*',
        ])  # fmt: skip
        assert base64.b64encode(b"broken").decode()[:6] in said

    told = [kept, again, alice.call("GET", "/appcodes/ops-demo/environments")]
    assert PASSWORD not in json.dumps(told)
    for log in (portal_up.data / "log").iterdir():
        assert PASSWORD not in log.read_text(errors="replace"), log


def test_a_run_is_opened_in_a_notebook_and_a_notebook_is_run(browser: Browser, portal_up: Portal, lab: str) -> None:
    alice = Client(portal_up, "alice")
    notebook = "/appcodes/ops-demo/applications/lab"
    ready(portal_up, notebook)
    spec: dict[str, Any] = {
        "image": "tensorflow-2-21",
        "output": "demo-output",
        "roles": {"master": {"flavor": "small"}},
    }
    wrote = alice.create("ops-demo", "wrote", command="echo learned > /elearn/output/notes.txt", **spec)
    base = f"http://{host_of(portal_up, lab)}"
    put = "([path, body]) => fetch('/api/contents/' + path, {method: 'PUT', body}).then(answer => answer.status)"
    with visiting(browser, portal_up, "alice", lab, "/static/favicons/favicon.ico") as page:
        page.wait_for_url(f"{base}/static/**")
        for path, first, second in (
            ("sums", "epochs = 1", "print('so', epochs * 6)"),
            ("bad", "print('first')", "1/0"),
        ):
            empty = {"cell_type": "code", "execution_count": None, "outputs": []}
            cells = [
                {**empty, "id": "one", "source": first, "metadata": {"tags": ["parameters"]}},
                {**empty, "id": "two", "source": second, "metadata": {}},
            ]
            body = json.dumps({"type": "notebook", "format": "json", "content": {**NOTEBOOK, "cells": cells}})
            assert page.evaluate(put, [f"{path}.ipynb", body]) == 201
        page.goto(f"{portal_up.origin}/applications/ops-demo/lab/run")
        page.get_by_label("Notebook").select_option("sums.ipynb")
        page.get_by_label("Parameters").fill("epochs = 7")
        page.get_by_label("Output").select_option("demo-output")
        page.get_by_role("button", name="Run", exact=True).click()
        page.wait_for_url("**/clusters/ops-demo/sums")
        wanted = {"notebook": "bad.ipynb", "output": "demo-output"}
        bad = alice.call("POST", f"{notebook}/run", {"metadata": {"name": "bad"}, "spec": wanted})
        assert bad["spec"]["notebook"]["path"] == "bad.ipynb"
        for name, phase in (("wrote", "Succeeded"), ("sums", "Succeeded"), ("bad", "Failed")):
            assert eventually(lambda: phase_of(alice, name) == phase, 120), phase_of(alice, name)  # noqa: B023
        reason = alice.call("GET", "/appcodes/ops-demo/clusters/bad")["status"]["message"]
        assert reason.endswith("Cell 2 of 2 failed: ZeroDivisionError: division by zero")
        kept = alice.call("GET", "/appcodes/ops-demo/datastores/demo-output/files/bad/1/bad.ipynb")
        assert kept["cells"][0]["outputs"][0]["text"] == ["first\n"]

        # The running notebook does not include the run, so the page asks before restarting it. Later one click is enough.
        page.goto(f"{portal_up.origin}/clusters/ops-demo/wrote/notebook")
        page.get_by_role("row", name="lab").get_by_role("button", name="Start anew").click()
        page.get_by_role("dialog").get_by_role("button", name="Start it anew").click()
        page.wait_for_url(f"{base}/lab/tree/elearn-runs/wrote/1", timeout=LATE)
        expect(page.locator(".jp-DirListing-item", has_text="notes.txt")).to_be_visible(timeout=LATE)
        again = alice.call("POST", f"{wrote}/notebook", {"application": "lab", "runs": ["sums/1"], "restart": True})
        assert again["spec"]["runs"] == ["wrote/1", "sums/1"]
        before = again["status"]["run"]
        assert eventually(lambda: alice.call("GET", notebook)["status"]["run"] > before, 60)
        ready(portal_up, notebook)
        page.goto(f"{portal_up.origin}/clusters/ops-demo/sums")
        page.get_by_label("Actions for sums").click()
        with page.context.expect_page() as opened:
            page.get_by_role("button", name="Open in notebook", exact=True).click()
        opened.value.wait_for_url(f"{base}/lab/tree/elearn-runs/sums/1/sums.ipynb", timeout=LATE)
        # Notebooks that were open before are open again.
        expect(opened.value.locator(".jp-OutputArea-output", has_text="so 42")).to_be_visible(timeout=LATE)


def run_first_cell(page: Page) -> None:
    """Repeats the keys, because JupyterLab ignores them while it redraws the notebook."""
    begun = page.locator(".jp-InputPrompt:has-text('[*]'), .jp-OutputArea-output").first
    for _ in range(4):
        page.click(".jp-Notebook .cm-content")
        page.keyboard.press("Shift+Enter")
        with contextlib.suppress(NotYet):
            begun.wait_for(timeout=20_000)
            return
    pytest.fail("JupyterLab runs no cell.")


def phase_of(client: Client, name: str) -> Any:
    return client.call("GET", f"/appcodes/ops-demo/clusters/{name}")["status"]["phase"]


def portal_exec(portal: Portal, path: str, argv: list[str]) -> str:
    """Returns the output lines of a command that REST runs in a task."""
    client = Client(portal, "alice")
    request = urllib.request.Request(
        client.url + path,
        data=json.dumps({"argv": argv}).encode(),
        headers={"Authorization": f"Bearer {client.token}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        return str(response.read().decode())


def test_a_plugin_is_in_jupyterlab_and_a_broken_one_keeps_nobody_out(portal_up: Portal) -> None:
    index = portal_up.index
    index.plugin("labtree", labtree=TREE)
    # Its package would shadow tornado, which JupyterLab needs, and its extension cannot be loaded.
    index.plugin(
        "labbroken", labbroken="raise RuntimeError('broken')", **{"tornado/__init__": "raise RuntimeError('broken')"}
    )
    root, alice = Client(portal_up, "root"), Client(portal_up, "alice")
    image = next(each["name"] for each in alice.call("GET", "/images")["items"] if each["name"].startswith("jupyter"))
    for name in ("tree", "broken"):
        spec = {"title": name.title(), "requirements": [f"lab{name}"]}
        root.call("POST", f"/images/{image}/plugins", {"metadata": {"name": name}, "spec": spec})
    spec = {
        "type": "jupyter",
        "image": image,
        "flavor": "small",
        "storage": {"size": "1Gi"},
        "plugins": ["broken", "tree"],
    }
    alice.call("POST", "/appcodes/ops-demo/applications", {"metadata": {"name": "plugged"}, "spec": spec})
    path, host = "/appcodes/ops-demo/applications/plugged", host_of(portal_up, "notebook-plugged-ops-demo")
    ready(portal_up, path)
    by_token = {"Authorization": f"token {alice.call('POST', f'{path}/access/refresh')['token']}"}
    assert eventually(lambda: asked(portal_up, host, "/api", by_token)[0] == 200, 10)
    status, _, said = asked(portal_up, host, "/api/tree", by_token)
    assert (status, json.loads(said)["tree"]) == (200, "tall")
    assert "/plugins/" not in json.loads(said)["tornado"]
    # Child processes of JupyterLab, such as language servers, see it too.
    assert json.loads(said)["started"] == "True"
    _, _, page = asked(portal_up, host, "/lab", by_token)
    assert '"labtree"' in page
    assert asked(portal_up, host, "/lab/extensions/labtree/static/entry.js", by_token)[2] == "// of tests"
    # Kernels do not see it.
    token = by_token["Authorization"].partition(" ")[2]
    sees = "import importlib.util; print(importlib.util.find_spec('labtree'))"
    assert printed(portal_up, host, token, sees) == "None\n"
    alice.call("POST", f"{path}/disable")
