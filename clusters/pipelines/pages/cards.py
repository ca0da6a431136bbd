"""The stages of a pipeline as cards of fields, and back. Pure.

One idea: a card can express any stage. What its fields cannot express is YAML in the last one (`rest`), so `stage_of`
is the inverse of `card_of` for every stage. Renaming a stage on its card also renames references to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from clusters.frame.env_text import read_env, write_env
from clusters.frameworks import COMPUTING
from clusters.frameworks.base import Framework
from clusters.manifest.input import FROM
from clusters.pipelines.manifest import MAX_STAGES
from clusters.pipelines.pages.text import read_mapping
from portal.errors import FieldError, Invalid

# Text parts, `name` first; `was` is the name as rendered, which other cards refer to. (`after` is a list.)
PARTS = (
    "name", "was", "kind", "when", "retries", "best", "image", "role", "flavor", "command", "input", "output", "env", "rest",
    "sweep",
)  # fmt: skip
STAGE = "stage:"
MAX_TEXT = 256 * 1024
TWICE = "It stands here and below, in the rest; say it once."
_KINDS = ("spec", "sweep", "best")
# Manifest path below a stage → the part of the card.
_PART_OF: dict[tuple[str, ...], str] = {
    ("name",): "name", ("after",): "after", ("when",): "when", ("retries",): "retries", ("best",): "best", ("sweep",): "sweep",
    **{("spec", key): key for key in ("image", "command", "input", "output", "env")},
}  # fmt: skip


@dataclass
class Card:
    """`said` is the text by part, `after` the names of other stages, `wrong` the errors by part."""

    number: int
    said: dict[str, str]
    after: list[str] = field(default_factory=list)
    wrong: dict[str, list[str]] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return f"stage-{self.number}"

    @property
    def name(self) -> str:
        return self.said["name"]

    @property
    def has_more(self) -> bool:
        return bool(self.said["rest"].strip() or self.said["env"].strip() or self.wrong.keys() & {"rest", "env"})

    def complain(self, path: Sequence[str], message: str) -> None:
        """Adds an error to the part that a path below the stage names."""
        part = next((_PART_OF[tuple(path[:n])] for n in range(len(path), 0, -1) if tuple(path[:n]) in _PART_OF), None)
        inside = ".".join(path[1:])
        if tuple(path[:3]) == ("spec", "roles", self.said["role"]) and path[3:] in ([], ["flavor"], ("flavor",), ()):
            part = "flavor"
        if part == "sweep":
            message = f"{inside}: {message}" if inside else message
        if part is None:
            part, message = ("rest", f"{inside}: {message}") if path[:1] == ("spec",) and inside else ("name", message)
        self.wrong.setdefault(part, []).append(message)


def blank(name: str, **said: str) -> Card:
    return Card(0, dict.fromkeys(PARTS, "") | {"name": name, "was": name, "kind": "spec", "when": "succeeded"} | said)


def card_of(stage: Mapping[str, Any], names: Sequence[str]) -> Card:
    """The card of a stage in short form (`write_stages`); `names` are the names of all stages."""
    card = blank(stage["name"], when=stage.get("when", "succeeded"), retries=str(stage.get("retries", "") or ""))
    card.after = list(stage.get("after", ()))
    if "best" in stage:
        card.said |= {"kind": "best", "best": stage["best"]}
    elif "sweep" in stage:
        card.said |= {"kind": "sweep", "sweep": _dump(stage["sweep"])}
    else:
        card.said |= _fields(dict(stage["spec"]), names)
    return card


def _fields(spec: dict[str, Any], names: Sequence[str]) -> dict[str, str]:
    said = {key: spec.pop(key, None) or "" for key in ("image", "command", "output")}
    said["env"] = write_env(spec.pop("env", {}))
    read = spec.get("input")
    source = read.get("from") if isinstance(read, dict) and len(read) == 1 else None
    if isinstance(read, str) and ":" not in read:
        said["input"] = spec.pop("input")
    elif source:
        said["input"] = f"{STAGE if source in names else FROM}{source}"
        del spec["input"]
    roles = {name: dict(each) for name, each in spec.pop("roles", {}).items()}
    first = _first_role(spec)
    said["role"] = first if first in roles else next(iter(roles), first)
    said["flavor"] = roles.get(said["role"], {}).pop("flavor", "")
    roles = {name: each for name, each in roles.items() if each}
    if roles:
        spec["roles"] = roles
    said["rest"] = _dump(spec) if spec else ""
    return said


def stages_of(cards: Sequence[Card]) -> list[dict[str, Any]]:
    """The stages of the cards, as in a manifest. Raises Invalid, with manifest paths, for values that no manifest can hold."""
    now = {card.said["was"]: card.name for card in cards if card.said["was"]}
    stages, errors = [], list[FieldError]()
    for number, card in enumerate(cards):
        try:
            stages.append(_stage(card, now))
        except Invalid as invalid:
            errors += [FieldError(("spec", "stages", str(number), *each.path), each.message) for each in invalid.errors]
    if errors:
        raise Invalid(errors)
    return stages


def _stage(card: Card, now: Mapping[str, str]) -> dict[str, Any]:
    said = card.said
    stage: dict[str, Any] = {"name": card.name}
    if card.after:
        stage["after"] = [now.get(name, name) for name in card.after]
    if said["when"] != "succeeded":
        stage["when"] = said["when"]
    if said["retries"].strip() not in ("", "0"):
        stage["retries"] = _number(said["retries"].strip())
    if said["kind"] == "best":
        stage["best"] = now.get(said["best"], said["best"])
    elif said["kind"] == "sweep":
        stage["sweep"] = _renamed(read_mapping(said["sweep"], "sweep"), now, "template")
    else:
        stage["spec"] = _spec(said, now)
    return stage


def _spec(said: Mapping[str, str], now: Mapping[str, str]) -> dict[str, Any]:
    rest = _renamed(read_mapping(said["rest"], "spec"), now)
    try:
        env = read_env(said["env"])
    except ValueError as error:
        raise Invalid.at("spec", "env", message=str(error)) from None
    spec: dict[str, Any] = {key: said[key] for key in ("image", "command", "output") if said[key]}
    if env:
        spec["env"] = env
    if said["input"].startswith(STAGE):
        name = said["input"].removeprefix(STAGE)
        spec["input"] = {"from": now.get(name, name)}
    elif said["input"]:
        spec["input"] = {"from": said["input"].removeprefix(FROM)} if said["input"].startswith(FROM) else said["input"]
    if twice := sorted(spec.keys() & rest.keys()):
        raise Invalid.at("spec", twice[0], message=TWICE)
    roles = rest.pop("roles", {})
    if not isinstance(roles, dict) or not all(isinstance(each, dict) for each in roles.values()):
        raise Invalid.at("spec", "roles", message="Write each role as worker: {flavor: NAME, count: 2}.")
    # `rest` names the flavor's role only if it says more about it. If `rest` names another framework with other roles,
    # the flavor belongs to that framework's first role.
    is_known = not roles or said["role"] in {*roles, *(each.name for each in _framework(rest).roles)}
    role = said["role"] if is_known else _first_role(rest)
    if said["flavor"]:
        if "flavor" in roles.get(role, {}):
            raise Invalid.at("spec", "roles", role, "flavor", message=TWICE)
        roles = {
            role: {"flavor": said["flavor"], **roles.get(role, {})},
            **{k: v for k, v in roles.items() if k != role},
        }
    return {**spec, **rest, "roles": roles}


def _framework(spec: Mapping[str, Any]) -> Framework:
    return COMPUTING.get(str(spec.get("framework", "")), next(iter(COMPUTING.values())))


def _first_role(spec: Mapping[str, Any]) -> str:
    """The role that every cluster of the framework has."""
    framework = _framework(spec)
    return next((role.name for role in framework.roles if role.least), framework.roles[0].name)


def _renamed(spec: dict[str, Any], now: Mapping[str, str], *way: str) -> dict[str, Any]:
    """`spec` with the current name of the stage that it reads; `way` leads to the part that has the input."""
    inside: Any = spec
    for key in way:
        inside = inside.get(key) if isinstance(inside, dict) else None
    read = inside.get("input") if isinstance(inside, dict) else None
    if isinstance(read, dict) and isinstance(source := read.get("from"), str):
        read["from"] = now.get(source, source)
    return spec


def _number(text: str) -> int | str:
    return int(text) if text.isdecimal() and len(text) < 6 else text


def _dump(value: Any) -> str:
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)
    return text


def read_cards(data: Any) -> list[Card]:
    """Reads cards from a POST body: `stage-0-name`, `stage-0-after` (repeated), … in order of their numbers."""
    cards = []
    for number in range(MAX_STAGES + 1):
        if f"stage-{number}-name" not in data:
            break
        said = {part: _text(data.get(f"stage-{number}-{part}", "")) for part in PARTS}
        if said["kind"] not in _KINDS:
            said["kind"] = "spec"
        cards.append(Card(number, said, [_text(each) for each in data.getlist(f"stage-{number}-after")[:MAX_STAGES]]))
    return cards


def _text(value: str) -> str:
    return value.replace("\r\n", "\n").replace("\0", "")[:MAX_TEXT]


def numbered(cards: Sequence[Card]) -> list[Card]:
    """The cards as rendered: numbered by place, with references to current names."""
    now = {card.said["was"]: card.name for card in cards if card.said["was"]}
    for number, card in enumerate(cards):
        card.number = number
        card.after = [now.get(name, name) for name in card.after]
        for part, prefix in (("input", STAGE), ("best", "")):
            value = card.said[part]
            if value.startswith(prefix) and value.removeprefix(prefix) in now:
                card.said[part] = prefix + now[value.removeprefix(prefix)]
    for card in cards:
        card.said["was"] = card.name
    return list(cards)
