"""docker/compose.yaml without Docker: it matches the specification, and its programs run as written there.

Processes get what a container would give them: the variables of the image, secrets as files, a /tmp of their own. PostgreSQL is
that of the tests. Networks, users and file systems, which only containers have, are not tested.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg2
import pytest
import yaml

from portal.up import programs, servers, services
from portal.up.services import Service, free_port
from tests.kube.certificates import Authority
from tests.running import eventually

DOCKER = Path(__file__).resolve().parents[2] / "docker"
FILES = ("compose.yaml", "compose.tls.yaml")


@pytest.mark.parametrize("name", FILES)
def test_it_fits_the_compose_specification(name: str) -> None:
    argv = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(DOCKER / name)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_secrets_are_made_once_and_fit_together(tmp_path: Path) -> None:
    shutil.copy(DOCKER / "secrets.sh", tmp_path)
    before = None
    for _ in range(2):
        subprocess.run([str(tmp_path / "secrets.sh")], check=True)
        found = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
        assert before in (None, found)
        before = found
    assert set(found) == set(compose("compose.yaml")["secrets"])
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    assert found["postgres-password"] in found["database-url"]
    assert found["redis-conf"].split()[1] in found["redis-url"]
    assert len({found[name] for name in ("portal-secret-key", "postgres-password")}) == 2


def compose(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DOCKER / name).read_text())
    return loaded


def config(name: str, of: str) -> str:
    return (DOCKER / compose(name)["configs"][of]["file"]).read_text()


@pytest.mark.parametrize("name", FILES)
def test_what_a_service_with_a_read_only_root_is_given_comes_from_files(name: str) -> None:
    """Compose refuses to start one with a config or a secret of another kind."""
    for kind in ("configs", "secrets"):
        for each in compose(name)[kind].values():
            assert (DOCKER / each["file"]).exists() or each["file"].startswith("secrets/")


def test_only_files_and_commands_are_passed_on_before_they_have_come_whatever_people_call_their_things() -> None:
    """A thread of the web server reads these bodies, for as long as the client keeps sending."""
    routers = yaml.safe_load(config("compose.yaml", "routes"))["http"]["routers"]
    assert routers["bodies"]["rule"] == programs.HAS_BODY
    kinds = re.findall(r"Method\(`(P\w+)`\) && PathRegexp\(`([^`]+)`\)", programs.HAS_BODY)
    root = "/api/v1/appcodes"
    passed_on = [("PUT", f"{root}/a/datastores/d/files/x"), ("POST", f"{root}/a/clusters/c/runs/1/tasks/worker/0/exec")]
    read_whole = [
        ("PUT", f"{root}/a/clusters/exec"),
        ("POST", f"{root}/exec/datastores/d/files/exec"),
        ("PUT", f"{root}/files/clusters/files/"),
        ("PUT", f"{root}/files/datastores/exec"),
    ]
    for asked in (*passed_on, *read_whole):
        assert any(asked[0] == method and re.search(way, asked[1]) for method, way in kinds) == (asked in passed_on)


class Host:
    """A stand-in for a Docker host: `service(name)` is that service of compose.yaml as a process."""

    def __init__(self, folder: Path, database: str) -> None:
        self.folder = folder
        self.web, self.router, self.gateway, self.tls, self.redis = (free_port() for _ in range(5))
        for name in ("worker", "beat", "controller", "router"):
            (folder / "tmp" / name).mkdir(parents=True)
        self.valkey = Path(servers.valkey(folder / "valkey", folder / "run").argv[0])
        shutil.copy(DOCKER / "secrets.sh", folder)
        subprocess.run([str(folder / "secrets.sh")], check=True)
        (folder / "secrets/database-url").write_text(database + "\n")
        self._replace("redis-url", "@redis:6379", f"@127.0.0.1:{self.redis}")
        (folder / "secrets/redis-conf").open("a").write(f"port {self.redis}\nbind 127.0.0.1\n")
        self.compose = compose("compose.yaml")

    def _replace(self, name: str, old: str, new: str) -> None:
        path = self.folder / "secrets" / name
        path.write_text(path.read_text().replace(old, new))

    def here(self, text: str, name: str = "") -> str:
        """Returns a word of compose.yaml with container paths and addresses replaced; variables get their defaults."""
        text = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", text).replace("$$", "$")
        elsewhere = {
            "/run/secrets/": f"{self.folder}/secrets/",
            "/etc/traefik/dynamic": f"{self.folder}/gateway",
            "http://web:8000": f"http://127.0.0.1:{self.web}",
            "127.0.0.1:8000": f"127.0.0.1:{self.web}",
            "http://router:8001": f"http://127.0.0.1:{self.router}",
            "8001": str(self.router),
            "0.0.0.0": "127.0.0.1",
            "/tmp/": f"{self.folder}/tmp/{name}/",
        }
        return re.sub("|".join(map(re.escape, elsewhere)), lambda found: elsewhere[found[0]], text)

    def env(self, name: str) -> dict[str, str]:
        """Returns the variables of the image and the service."""
        given = self.compose["services"][name].get("environment", {})
        binaries = f"{Path(sys.executable).parent}:{self.valkey.parent}:/usr/bin:/bin"
        env = {"PATH": binaries, "HOME": str(self.folder / "tmp"), "LANG": "C.UTF-8"}
        if "build" in self.compose["services"][name]:
            static = {"PORTAL_STATIC": str(self.folder / "served")}
            env = image_env() | env | static | {"PORTAL_WEB_BIND": f"127.0.0.1:{self.web}"}
        return env | {key: self.here(value, name) for key, value in given.items()}

    def argv(self, name: str) -> list[str]:
        """Returns the command of the service, or that of the image if it has none."""
        said = self.compose["services"][name].get("command") or json.loads(dockerfile().rpartition("CMD ")[2])
        return [self.here(word, name) for word in said]

    def healthy(self, name: str) -> bool:
        if name == "redis":  # the wheel has no valkey-cli
            return b"NOAUTH" in services.ask(self.redis, b"PING\r\nQUIT\r\n")
        kind, *test = self.compose["services"][name]["healthcheck"]["test"]
        test = [self.here(word, name) for word in test]
        argv = ["sh", "-c", *test] if kind == "CMD-SHELL" else test
        return subprocess.run(argv, env=self.env(name), capture_output=True, check=False).returncode == 0

    def service(self, name: str) -> Service:
        return Service(
            name,
            ("env", "-i", *(f"{key}={value}" for key, value in self.env(name).items()), *self.argv(name)),
            ready=lambda: self.healthy(name),
            stop_seconds=30,
        )


def dockerfile() -> str:
    """Returns the last stage of the portal's Dockerfile."""
    return (DOCKER / "portal" / "Dockerfile").read_text().rpartition("FROM ")[2]


def image_env() -> dict[str, str]:
    said = re.search(r"^ENV ((?:.*\\\n)*.*)$", dockerfile(), re.MULTILINE)
    assert said
    return dict(word.split("=", 1) for word in shlex.split(said[1].replace("\\\n", " ")))


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A host with a new and empty database."""
    parts = urlsplit(os.environ["DATABASE_URL"])
    name = f"compose_{os.getpid()}"
    server = psycopg2.connect(os.environ["DATABASE_URL"])
    server.autocommit = True
    with server.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
        try:
            yield Host(tmp_path, urlunsplit(parts._replace(path=f"/{name}")))
        finally:
            cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")
            server.close()


def close_database(host: Host) -> None:
    """Cuts open connections to the database and refuses new ones."""
    name = urlsplit((host.folder / "secrets/database-url").read_text()).path.strip("/\n")
    server = psycopg2.connect(os.environ["DATABASE_URL"])
    server.autocommit = True
    with server.cursor() as cursor:
        cursor.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        # Wait until they are closed, so that the next request to the portal finds no database.
        cursor.execute("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = %s", [name])
    server.close()


def through_the_gateway(host: Host, logs: Path) -> None:
    """Fetches the sign-in page over HTTP with compose.yaml alone, and over HTTPS with compose.tls.yaml on top."""
    ours = {"TRAEFIK_ENTRYPOINTS_WEB_ADDRESS": f"127.0.0.1:{host.gateway}"}
    ours["TRAEFIK_ENTRYPOINTS_TRAEFIK_ADDRESS"] = f"127.0.0.1:{free_port()}"  # for Traefik's ping
    (host.folder / "gateway").mkdir()
    (host.folder / "gateway/routes.yaml").write_text(host.here(config("compose.yaml", "routes")))
    (proof,) = host.compose["services"]["gateway"]["secrets"]
    shutil.copy(host.folder / "secrets" / proof["source"], host.here(proof["target"]))
    page = f"http://127.0.0.1:{host.gateway}/accounts/login/"
    with services.running([gateway(host, ours)], logs, {}):
        assert eventually(lambda: get(page)[0] == 200)
        assert "csrfmiddlewaretoken" in get(page)[1]
        # For a service's host name, the router answers every request, whatever its path and method.
        asked = f"http://127.0.0.1:{host.gateway}/v1/models/digits:predict", f"{page}?next=/"
        for each in asked:
            answer = 404, json.dumps({"error": "There is nothing here that you may open."})
            assert get(each, of="digits-ops-demo.serve.localhost:8000") == answer
    status, said = get(f"http://127.0.0.1:{host.web}/accounts/login/")
    assert (status, said) == (403, "This is the portal's inner web server. Its address is http://localhost:8000\n")

    authority = Authority(host.folder, "127.0.0.1")
    certificate, key = authority.issue("portal", file="portal")
    shutil.copy(certificate, host.folder / "secrets/tls-certificate")
    shutil.copy(key, host.folder / "secrets/tls-key")
    more = compose("compose.tls.yaml")
    (host.folder / "gateway/tls.yaml").write_text(host.here(config("compose.tls.yaml", "tls")))
    ours |= {
        **more["services"]["gateway"]["environment"],
        "TRAEFIK_ENTRYPOINTS_WEBSECURE_ADDRESS": f"127.0.0.1:{host.tls}",
        "TRAEFIK_ENTRYPOINTS_WEB_HTTP_REDIRECTIONS_ENTRYPOINT_TO": f":{host.tls}",
    }
    with services.running([gateway(host, ours)], logs, {}):
        believed = ssl.create_default_context(cafile=str(authority.path))
        secure = f"https://localhost:{host.tls}/accounts/login/"
        assert eventually(lambda: get(secure, believed)[0] == 200)
        plain = b"GET /accounts/login/ HTTP/1.0\r\nHost: localhost\r\n\r\n"
        assert eventually(lambda: f"Location: {secure}".encode() in services.ask(host.gateway, plain))


def gateway(host: Host, more: dict[str, str]) -> Service:
    env = host.env("gateway") | more
    argv = ("env", "-i", *(f"{name}={value}" for name, value in env.items()), services.program("traefik"))
    ask = [services.program("traefik"), *host.compose["services"]["gateway"]["healthcheck"]["test"][2:]]
    return Service(
        "gateway", argv, lambda: subprocess.run(ask, env=env, capture_output=True, check=False).returncode == 0
    )


def get(url: str, context: ssl.SSLContext | None = None, *, of: str = "localhost:8000") -> tuple[int, str]:
    request = urllib.request.Request(url, headers={"Host": of})
    try:
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_its_programs_start_in_its_order_and_become_healthy(host: Host) -> None:
    logs = host.folder / "log"
    logs.mkdir()
    manage = [sys.executable, "manage.py"]
    subprocess.run([*manage, "collectstatic", "--no-input", "-v0"], env=host.env("migrate"), check=True)
    with services.running([host.service("redis")], logs, {}):
        web = services.spawn(host.service("web"), logs / "web.log", {})
        try:
            # The web server is alive, but must not get requests before the migration or after the database is gone.
            services.wait_ready(
                Service("web", (), lambda: services.ask(host.web, b"GET /healthz HTTP/1.0\r\n\r\n") != b""),
                web,
                logs / "web.log",
            )
            at = f"http://127.0.0.1:{host.web}"
            assert get(f"{at}/healthz") == (200, "ok\n")
            assert get(f"{at}/readyz") == (503, "the database has yet to be migrated\n")
            assert not host.healthy("web")
            subprocess.run(host.argv("migrate"), env=host.env("migrate"), check=True, capture_output=True)
            assert eventually(lambda: host.healthy("web"))
            with services.running(
                [host.service(name) for name in ("worker", "beat", "controller", "router")], logs, {}
            ):
                through_the_gateway(host, logs)
            close_database(host)
            assert get(f"{at}/healthz")[0] == 200
            assert get(f"{at}/readyz") == (503, "the database is out of reach\n")
        finally:
            services.stop(host.service("web"), web)
    assert not host.healthy("redis"), "it goes on when it is asked to stop"
    lines = [json.loads(line) for line in (logs / "web.log").read_text().splitlines()]
    assert any(line["logger"] == "gunicorn.access" and " /accounts/login/ " in line["message"] for line in lines)
    assert not any(" 200 GET /healthz" in line["message"] for line in lines)
    for name in ("worker", "beat", "controller", "router"):
        # Celery's shutdown message is not JSON.
        said = set((logs / f"{name}.log").read_text().splitlines()) - {"", "worker: Warm shutdown (MainProcess)"}
        assert all(json.loads(line)["level"] for line in said)
    everything = "".join(path.read_text() for path in logs.iterdir())
    for secret in (host.folder / "secrets").iterdir():
        assert secret.read_text().strip() not in everything
