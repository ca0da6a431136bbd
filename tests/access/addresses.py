"""All URLs of the URL conf in the notation of the tables: /clusters/{appcode}/{name}. A choice of verbs gives a URL per verb."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

from django.urls import URLPattern, URLResolver, get_resolver
from django.urls.resolvers import RoutePattern

VERBS = re.compile(r"[\w-]+(\|[\w-]+)+")
# Matches <slug:name> in a route and (?P<name>[-\w]+) in a regular expression.
PARAMETER = re.compile(r"<(?:\w+:)?(\w+)>|\(\?P<(\w+)>([^()]*)\)")


def addresses() -> Iterator[tuple[str, URLPattern]]:
    """Yields (address, pattern). Omits open-ended patterns such as the catch-all `^api(?:/|\\Z)`."""
    yield from _below("/", get_resolver().url_patterns)


def _below(start: str, patterns: Any) -> Iterator[tuple[str, URLPattern]]:
    for pattern in patterns:
        for end in _readable(pattern.pattern):
            if isinstance(pattern, URLResolver):
                yield from _below(start + end, pattern.url_patterns)
            elif "(" not in end:
                yield start + end, pattern


def _readable(pattern: Any) -> list[str]:
    route = isinstance(pattern, RoutePattern)
    text = str(pattern) if route else re.sub(r"\\Z|\$", "", str(pattern)).removeprefix("^")
    parts: list[list[str]] = []
    last = 0
    for found in PARAMETER.finditer(text):
        name = found[1] or found[2]
        regex = pattern.converters[name].regex if route else found[3]
        parts += [[text[last : found.start()]], regex.split("|") if VERBS.fullmatch(regex) else [f"{{{name}}}"]]
        last = found.end()
    return ["".join(words) for words in itertools.product(*parts, [text[last:]])]
