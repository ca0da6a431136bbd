"""An API client that acts as one person, and manifests to send."""

from __future__ import annotations

import copy
import datetime as dt
import json
from dataclasses import dataclass
from typing import Any

from django.test import Client

from portal.models import ApiToken, User

SPEC: dict[str, Any] = {
    "image": "tensorflow",
    "command": "python train.py",
    "env": {"DATA_DIR": "/elearn/input"},
    "roles": {
        "master": {"flavor": "middle-1-gpu"},
        "ps": {"flavor": "middle", "count": 1},
        "worker": {"flavor": "middle-1-gpu", "count": 2},
    },
}


def manifest(name: str = "show1", appcode: str = "ops-demo", **spec: Any) -> dict[str, Any]:
    """Returns a valid manifest; `spec` replaces parts of it."""
    return {
        "kind": "cluster",
        "metadata": {"name": name, "appcode": appcode},
        "spec": {**copy.deepcopy(SPEC), **copy.deepcopy(spec)},
    }


def appcode(code: str = "ops-new", **spec: Any) -> dict[str, Any]:
    """Returns an appcode manifest that is accepted from alice; `spec` replaces parts of it."""
    given = {"orgNode": "qunarcorp.ops", "owners": ["alice"], "emails": ["alice@example.com"], **spec}
    return {"kind": "appcode", "metadata": {"name": code}, "spec": given}


@dataclass
class Api:
    """One person with a token. Methods return (status, body); `last` holds the whole answer."""

    token: str
    last: Any = None

    def __call__(
        self, method: str, path: str, body: Any = None, *, raw: bytes | None = None, **headers: str
    ) -> tuple[int, Any]:
        data = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        given = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        content_type = headers.pop("content_type", "application/json")
        self.last = Client().generic(
            method, f"/api/v1{path}", data, content_type=content_type, headers={**given, **headers}
        )
        kind = self.last.headers.get("Content-Type", "")
        return self.last.status_code, self.last.json() if "json" in kind and not self.last.streaming else self.last

    def get(self, path: str, **headers: str) -> tuple[int, Any]:
        return self("GET", path, **headers)

    def post(self, path: str, body: Any = None, **more: Any) -> tuple[int, Any]:
        return self("POST", path, body, **more)

    def put(self, path: str, body: Any = None, **more: Any) -> tuple[int, Any]:
        return self("PUT", path, body, **more)

    def delete(self, path: str) -> tuple[int, Any]:
        return self("DELETE", path)


def api_of(user: User, expiry: dt.timedelta = dt.timedelta(days=1)) -> Api:
    return Api(ApiToken.objects.create(user=user, name="test", expiry=expiry)[1])
