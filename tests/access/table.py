"""Tables of access rights: a line is a method, an address, one status per kind of person, and what is sent.

    PUT /appcodes/{code}    401 404 403 403 200 200    @appcode

The portal itself (OpenAPI description, URL conf) provides the addresses, so an address without a line is found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Not signed in; an outsider; viewer, developer and owner of ops-demo; the administrator.
PEOPLE = ("anonymous", "mallory", "victor", "bob", "alice", "root")
PLACEHOLDER = re.compile(r"\{(\w+)\}")
WIDTH = 84
# CSRF tokens differ in each answer, because Django masks them.
TOKEN = re.compile(r'(name="csrfmiddlewaretoken" value="|"X-CSRFToken": ")[A-Za-z0-9]{64}"')


Seen = tuple[int, str]


@dataclass(frozen=True)
class Row:
    method: str
    address: str
    expected: tuple[int, ...]
    sent: str = ""

    def __str__(self) -> str:
        statuses = " ".join(str(status) for status in self.expected)
        return f"{self.method:6} {self.address:{WIDTH}} {statuses}  {self.sent}".rstrip()

    @property
    def operation(self) -> tuple[str, str]:
        return self.method, self.address

    def of(self, name: str) -> int:
        return self.expected[PEOPLE.index(name)]


def name_of(row: Row) -> str:
    return " ".join(row.operation)


def read(path: Path) -> list[Row]:
    rows = []
    for line in path.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            method, address, *rest = line.split(maxsplit=2 + len(PEOPLE))
            statuses, sent = rest[: len(PEOPLE)], rest[len(PEOPLE) :]
            rows.append(Row(method, address, tuple(int(status) for status in statuses), *sent))
    return rows


def filled(address: str, values: Mapping[str, object]) -> str:
    """Returns the address with a value for each placeholder. The longest matching key of `values` wins: `/budgets/{id}` and
    `/prices/{id}` take different ids."""
    return PLACEHOLDER.sub(lambda found: str(_value(address[: found.end()], values)), address)


def without_each(
    address: str, values: Mapping[str, object], absent: Mapping[str, object]
) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yields (placeholder, values) for each placeholder of the address: its value is replaced by one that does not exist."""
    for name in sorted(set(PLACEHOLDER.findall(address))):
        others = {key: value for key, value in values.items() if not key.endswith(f"{{{name}}}")}
        yield name, others | {f"{{{name}}}": absent[f"{{{name}}}"]}


def seen(answer: Any, address: str, *known: Mapping[str, object]) -> Seen:
    """Returns status, headers and text of an answer. Ids, request id and CSRF tokens are masked, so that answers compare."""
    told = {
        str(_value(address[: place.end()], values)) for values in known for place in PLACEHOLDER.finditer(address)
    } | {answer["X-Request-ID"]}
    text = "\n".join(
        [*(f"{key}: {value}" for key, value in sorted(answer.items()) if key != "Content-Length"), answer.text]
    )
    text = TOKEN.sub(r'\1…"', text)
    for value in sorted(told, key=len, reverse=True):
        text = text.replace(value, "…")
    return answer.status_code, text


def _value(start: str, values: Mapping[str, object]) -> object:
    keys = [key for key in values if start.endswith(key)]
    assert keys, f"the world has nothing for {start}: give it a value in tests/access/world.py"
    return values[max(keys, key=len)]
