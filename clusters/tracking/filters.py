"""MLflow's search language as conditions: `metrics.loss < 0.5 and params.model = 'tree'`. Pure.

Source: mlflow/utils/search_utils.py. Terms are joined by AND alone, as there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from clusters.tracking.messages import wrong

MAX_FILTER, MAX_TERMS = 4000, 20
Kind = Literal["attribute", "metric", "param", "tag"]
KINDS: dict[str, Kind] = {
    "attribute": "attribute", "attributes": "attribute", "attr": "attribute", "run": "attribute",
    "metric": "metric", "metrics": "metric",
    "param": "param", "params": "param", "parameter": "param", "parameters": "param",
    "tag": "tag", "tags": "tag",
}  # fmt: skip
# Names of attributes, and the fields of TrackedRun.
ATTRIBUTES = {
    "run_id": "id", "run_name": "name", "Run name": "name", "run name": "name", "status": "status",
    "start_time": "started_at", "created": "started_at", "Created": "started_at", "end_time": "ended_at",
}  # fmt: skip
NUMBERS = frozenset({"started_at", "ended_at"})
_KEY = r"(?:(?P<kind>[A-Za-z]+)\s*\.\s*)?(?:`(?P<tick>[^`]+)`|\"(?P<quote>[^\"]+)\"|(?P<bare>[\w./-]+))"
_VALUE = (
    r"'(?P<single>[^']*)'|\"(?P<double>[^\"]*)\"|(?P<number>[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)|\((?P<list>[^()]*)\)"
)
_TERM = re.compile(
    rf"\s*{_KEY}\s*(?P<does>!=|>=|<=|=|>|<|(?:NOT\s+IN|IN|LIKE|ILIKE)\b)\s*(?:{_VALUE})\s*", re.IGNORECASE
)
_AND = re.compile(r"AND\b", re.IGNORECASE)
_ORDER = re.compile(rf"\s*{_KEY}(?:\s+(?P<way>ASC|DESC))?\s*", re.IGNORECASE)
_ITEM = re.compile(r"\s*(?:'([^']*)'|\"([^\"]*)\")\s*(?:,|$)")


@dataclass(frozen=True)
class Term:
    """`does`: =, !=, <, <=, >, >=, LIKE, ILIKE, IN or NOT IN. `name`: of an attribute, the field of TrackedRun."""

    kind: Kind
    name: str
    does: str
    value: str | float | tuple[str, ...]


@dataclass(frozen=True)
class Order:
    kind: Kind
    name: str
    is_descending: bool


def terms_of(words: str) -> list[Term]:
    """Raises Refused for what it does not understand."""
    if len(words) > MAX_FILTER:
        raise wrong(f"A filter has at most {MAX_FILTER:,} characters.")
    found, at = list[Term](), 0
    while words[at:].strip():
        if found:
            joined = _AND.match(words, at)
            if joined is None:
                raise wrong(f"Terms of a filter are joined by AND: “{words[at:][:80]}” is not.")
            at = joined.end()
        term = _TERM.match(words, at)
        if term is None or len(found) >= MAX_TERMS:
            raise wrong(
                f"“{words[at:][:80]}” is no term like metrics.loss < 0.5, params.model = 'tree' or tags.a LIKE 'b%'."
            )
        found.append(_term(term))
        at = term.end()
    return found


def order_of(words: str) -> Order:
    found = _ORDER.fullmatch(words[:MAX_FILTER])
    if found is None:
        raise wrong(f"“{words[:80]}” is no order like metrics.loss ASC.")
    return Order(*_key(found), (found["way"] or "").upper() == "DESC")


def pattern_of(like: str) -> str:
    """Returns the regular expression of a LIKE."""
    return "^" + "".join({"%": ".*", "_": "."}.get(letter) or re.escape(letter) for letter in like) + "$"


def _term(found: re.Match[str]) -> Term:
    kind, name = _key(found)
    does = " ".join(found["does"].upper().split())
    value: str | float | tuple[str, ...]
    if (several := found["list"]) is not None:
        items = [one or two for one, two in _ITEM.findall(several)]
        if not items:
            raise wrong(f"“({several[:80]})” is no list of texts.")
        value = tuple(items)
    elif found["number"] is not None:
        value = float(found["number"])
    else:
        value = found["single"] if found["single"] is not None else found["double"]
    is_number = kind == "metric" or (kind == "attribute" and name in NUMBERS)
    if does in ("IN", "NOT IN") and (is_number or not isinstance(value, tuple)):
        raise wrong(f"{does} compares a text with a list of texts.")
    if does not in ("IN", "NOT IN") and isinstance(value, tuple):
        raise wrong(f"{does} compares with one value.")
    if is_number:
        if does in ("LIKE", "ILIKE") or isinstance(value, str):
            raise wrong(f"“{name}” is a number.")
    elif isinstance(value, float) or does in ("<", "<=", ">", ">="):
        raise wrong(f"“{name}” is a text: put its value in quotes, and compare by =, !=, LIKE, ILIKE or IN.")
    return Term(kind, name, does, value)


def _key(found: re.Match[str]) -> tuple[Kind, str]:
    name = found["tick"] or found["quote"] or found["bare"]
    if found["kind"] is None and found["bare"] and "." in name:
        # `metrics.loss` may have been read as one bare word.
        head, _, rest = name.partition(".")
        kind_word, name = (head, rest) if head in KINDS else ("attribute", name)
    else:
        kind_word = found["kind"] or "attribute"
    kind = KINDS.get(kind_word.lower())
    if kind is None:
        raise wrong(f"“{kind_word[:80]}” is none of attributes, metrics, params and tags.")
    if kind == "attribute":
        if name not in ATTRIBUTES:
            raise wrong(
                f"“{name[:80]}” is no attribute that can be searched; those are {', '.join(sorted(set(ATTRIBUTES)))}."
            )
        name = ATTRIBUTES[name]
    return kind, name
