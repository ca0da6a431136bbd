"""Fields of a manifest that keep their value for the life of the object. Pure.

The manifest declares them once: `name: Annotated[HookName, Kept("A hook keeps its name: clusters use it by that.")]`. The check
of a change, its error, the description of `PUT` and the forms derive from that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from portal.errors import Invalid
from portal.manifests import Manifest, public_path


@dataclass(frozen=True)
class Kept:
    """Marks a field of `metadata` or `spec`; on `spec` itself, all of its fields except those marked MAY_CHANGE. `why` is for
    users. Only `part` of the value is compared."""

    why: str
    part: Callable[[Any], Any] = lambda value: value


MAY_CHANGE = object()


def changeable(spec: type[BaseModel]) -> list[str]:
    """The JSON keys of the fields marked MAY_CHANGE."""
    return [field.alias or name for name, field in spec.model_fields.items() if MAY_CHANGE in field.metadata]


def kept_fields(manifest: type[BaseModel]) -> dict[tuple[str, str], Kept]:
    """The kept fields by path in Python names, e.g. ("spec", "stop_early")."""
    found = {}
    for part in ("metadata", "spec"):
        whole = manifest.model_fields.get(part, FieldInfo(annotation=BaseModel))
        model: Any = whole.annotation
        for name, field in model.model_fields.items():
            marks = field.metadata if MAY_CHANGE in field.metadata else [*field.metadata, *whole.metadata]
            if mark := next((each for each in marks if isinstance(each, Kept)), None):
                found[part, name] = mark
    return found


def refuse_changes(now: Manifest, /, spec: BaseModel | None = None, **metadata: str) -> None:
    """Raises Invalid if `now` changes a kept field. `metadata` and `spec` hold the present values of the kept fields."""
    was = {"metadata": metadata, "spec": dict(spec or {})}
    for (part, name), kept in kept_fields(type(now)).items():
        if kept.part(was[part][name]) != kept.part(getattr(getattr(now, part), name)):
            raise Invalid.at(*public_path(type(now), (part, name)), message=_sentence(kept, type(now)))


def described(manifest: type[BaseModel]) -> str:
    """The kept fields with their reasons, for the description of a `PUT`."""
    by_reason: dict[str, list[str]] = {}
    for path, kept in kept_fields(manifest).items():
        by_reason.setdefault(_sentence(kept, manifest), []).append(f"`{'.'.join(public_path(manifest, path))}`")
    return " ".join(f"{', '.join(paths)}: {why}" for why, paths in by_reason.items())


def _sentence(kept: Kept, manifest: type[BaseModel]) -> str:
    """The reason; for a spec as a whole, with the exceptions: "Trials, parallel and retries may change."."""
    whole: Any = manifest.model_fields.get("spec")
    if whole is None or kept not in whole.metadata:
        return kept.why
    *names, last = changeable(whole.annotation)
    said = f"{', '.join(names)} and {last}" if names else last
    return f"{kept.why} {said[:1].upper()}{said[1:]} may change."
