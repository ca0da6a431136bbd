"""Clients of each kind of person: a browser with a session, or a program with an API token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from django.conf import settings
from django.db import transaction
from django.test import Client

from portal.models import Event
from tests.access.table import Row, Seen, seen, without_each

REFUSED = (401, 403, 404, 405)


def browser(world: Any, name: str, *, checked: bool = False) -> Client:
    """Returns a browser signed in as `name`, without other cookies. `checked` enforces CSRF tokens, as outside of tests."""
    client = _client(checked)
    client.cookies.clear()
    if name in world.sessions:
        client.cookies[settings.SESSION_COOKIE_NAME] = world.sessions[name]
    return client


def program(world: Any, name: str) -> Client:
    return Client(headers={"Authorization": f"Bearer {world.tokens[name]}"} if name in world.tokens else {})


def ask(client: Client, method: str, path: str, body: str, content_type: str) -> Any:
    """Sends the request, rolls its changes back and returns the answer. Asserts that a refused request recorded no event."""
    with transaction.atomic():
        before = Event.objects.count()
        answer = client.generic(method, path, body, content_type=content_type)
        if answer.streaming:
            answer.getvalue()
        assert answer.status_code not in REFUSED or Event.objects.count() == before, (method, path, answer.status_code)
        transaction.set_rollback(True)
    return answer


def assert_all_look_alike(world: Any, row: Row, look: Callable[[Mapping[str, object]], Any]) -> None:
    """Asserts that absent objects get the same answer as existing ones. `look(values)` requests the address with these values."""

    def told(values: Mapping[str, object]) -> Seen:
        return seen(look(values), row.address, world.values, values)

    existing = told(world.values)
    for name, values in without_each(row.address, world.values, world.absent):
        assert told(values) == existing, name


@cache
def _client(checked: bool) -> Client:
    """Cached, because each new Client loads all middleware again."""
    return Client(enforce_csrf_checks=checked)
