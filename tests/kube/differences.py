"""Expected objects of a plan, stored as differences from the objects of another plan: a reviewer reads only what differs.

A file maps the kind and name of each object to its difference from the base's object of the same kind and name, or of the one
that `like` names. An object without either stands there whole. A difference contains

- the keys that differ, nested; `null` for a key that only the base has, `{}` for no difference;
- of a list of named items (env, volumes, containers) every item in its order: only its name if the base has the same item, its
  name and the keys that differ if the base's item differs;
- any other list whole.

`read` makes whole objects of it, and tests compare these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from yaml.representer import SafeRepresenter

from clusters.frameworks import starting

FOLDER = Path(__file__).parent / "expected"
BASE = "one-parameter-server-s3"

# These texts are named instead of repeated, so that a comment in a program changes no expected file.
_TEXTS = {
    starting.shared()[starting.SCRIPT]: "<shell script of clusters/frameworks/starting.py>",
    starting.shared()[starting.PROGRAM]: "<text of clusters/frameworks/inside/start.py>",
}
_WHOLE = {reference: text for text, reference in _TEXTS.items()}
_HEAD = f"""\
# Differences from {BASE}.yaml (tests/kube/differences.py).
# {{}}: no difference; null: absent here; a list item that is only a name: as there.
"""
_WORKLOADS = ("Job", "Deployment", "StatefulSet")

Objects = Sequence[Mapping[str, Any]]


def read(kind: str) -> list[dict[str, Any]]:
    """Returns all objects that are expected for the plan of this kind, whole and in order."""
    base = list(yaml.load_all((FOLDER / f"{BASE}.yaml").read_text(), _Whole))
    if kind == BASE:
        return base
    return _objects(yaml.load((FOLDER / f"{kind}.yaml").read_text(), _Whole), _by_title(base))


def write(kind: str, objects: Objects, base: Objects) -> None:
    """Writes the objects that are expected for the plan of this kind; `base` are those of the plan BASE."""
    if kind == BASE:
        text = yaml.dump_all(objects, Dumper=_Plain, sort_keys=False, width=120, default_flow_style=None)
    else:
        found = _by_title(base)
        text = _HEAD + yaml.dump(
            {title: _shortest(title, each, found) for title, each in _by_title(objects).items()},
            Dumper=_Plain,
            sort_keys=False,
            width=120,
            default_flow_style=None,
        )
    (FOLDER / f"{kind}.yaml").write_text(text)
    assert read(kind) == objects, f"the difference of {kind} does not tell all"


def _by_title(objects: Objects) -> dict[str, Mapping[str, Any]]:
    return {f"{each['kind']} {each['metadata']['name']}": each for each in objects}


def _objects(file: Mapping[str, Any], base: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = []
    for title, stored in file.items():
        rest = dict(stored)
        like = rest.pop("like", title)
        found.append(_applied(base[like], rest) if like in base else rest)
    return found


def _shortest(title: str, made: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    if title in base and made["kind"] not in _WORKLOADS:
        return _difference(base[title], made)
    kinds = _WORKLOADS if made["kind"] in _WORKLOADS else (made["kind"],)
    likes = [name for name, each in base.items() if each["kind"] in kinds]
    ways = [{**({"like": name} if name != title else {}), **_difference(base[name], made)} for name in likes]
    return min([*ways, dict(made)], key=lambda way: len(yaml.dump(way, Dumper=_Plain)))


def _named(items: Any) -> str:
    """Returns the key whose values identify the items of a list, if there is one."""
    if isinstance(items, list) and items and all(isinstance(each, dict) for each in items):
        for key in ("mountPath", "name"):
            values = [each.get(key) for each in items]
            if None not in values and len(set(values)) == len(values):
                return key
    return ""


def _difference(base: Any, made: Any) -> Any:
    if isinstance(base, Mapping) and isinstance(made, Mapping):
        changed = {key: _difference(base.get(key), each) for key, each in made.items() if base.get(key) != each}
        return changed | {key: None for key in base if key not in made}
    if (key := _named(base)) and _named(made) == key:
        there = {each[key]: each for each in base}
        return [_item(there.get(each[key]), each, key) for each in made]
    return made


def _item(base: Any, made: Mapping[str, Any], key: str) -> Any:
    if base is None:
        return made
    return made[key] if base == made else {key: made[key], **_difference(base, made)}


def _applied(base: Any, difference: Any) -> Any:
    if isinstance(base, Mapping) and isinstance(difference, Mapping):
        kept = {key: each for key, each in base.items() if key not in difference}
        changed = {key: _applied(base.get(key), each) for key, each in difference.items() if each is not None}
        return kept | changed
    if isinstance(difference, list) and (key := _named(base)):
        there = {each[key]: each for each in base}
        whole = [{key: each} if isinstance(each, str) else each for each in difference]
        return [_applied(there.get(each.get(key), {}), each) for each in whole]
    return difference


class _Plain(yaml.SafeDumper):
    """YAML without anchors (repeated values are written out), with references instead of the texts."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class _Whole(yaml.SafeLoader):
    """YAML with the texts in the places of their references."""


_Plain.add_representer(str, lambda dumper, text: SafeRepresenter.represent_str(dumper, _TEXTS.get(text, text)))
_Whole.add_constructor("tag:yaml.org,2002:str", lambda loader, node: _WHOLE.get(node.value, node.value))
