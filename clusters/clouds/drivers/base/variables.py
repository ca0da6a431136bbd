"""Reads and writes Kubernetes' variable syntax, `$(NAME)`."""

from __future__ import annotations

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")


def expand(text: str, values: Mapping[str, str]) -> str:
    """Expands `$(NAME)` by Kubernetes' rule: unknown names stay as they are, and `$$` is one dollar sign.

    Source: k8s.io/kubernetes/third_party/forked/golang/expansion.
    """
    return _REFERENCE.sub(lambda m: "$" if m[0] == "$$" else values.get(m[1], m[0]), text)


def literal(text: str) -> str:
    """Escapes `text` so that `expand` returns it unchanged."""
    return text.replace("$", "$$")
