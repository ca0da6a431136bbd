"""A manifest from what stands in the fields of a form, and the fields from a manifest.

`fields_of` is the inverse of `manifest_of`: every manifest survives form → POST → manifest, except for carriage returns in a
command, which no browser sends. What is wrong is for `ClusterManifest` to say; here is which field its sentence stands beside.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from clusters.after import HookSpec
from clusters.frameworks import COMPUTING, COMPUTING_COMPLETIONS, COMPUTING_ROLES
from clusters.frameworks.base import WORKER, Framework
from clusters.input import InputSpec, read_where
from clusters.manifest import AccessSpec, ClusterManifest, ClusterSpec, format_env, parse_env
from portal.errors import FieldError
from portal.zones import zone_of

# Largest first: a filled form shows the largest unit that leaves a whole number.
TIME_UNITS = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}

# What is said about an input, and the field of it.
INPUT = {
    "path": "input_path",
    "version": "input_version",
    "mode": "input_mode",
    "fold": "input_fold",
    "folds": "input_folds",
}
INPUT_INITIAL = {"input_mode": "auto"}

# What is said of a repository, and the field of it.
CODE = {"git": "code_git", "ref": "code_ref", "path": "code_path"}

ENDPOINT = re.compile(r"(?P<role>\S+)\s+(?P<name>[^\s=]+)=(?P<port>[0-9]{1,9})(?P<health>/\S*)?")

FIELD_OF_PATH: dict[tuple[str, ...], str] = {
    ("metadata", "appcode"): "appcode",
    ("metadata", "name"): "name",
    ("spec", "image"): "image",
    ("spec", "environment"): "environment",
    ("spec", "requirements"): "requirements",
    ("spec", "keras"): "keras",
    ("spec", "input"): "input",
    **{("spec", "input", key): name for key, name in INPUT.items()},
    ("spec", "output"): "output",
    ("spec", "home"): "home",
    ("spec", "outputPath"): "output_path",
    ("spec", "command"): "command",
    ("spec", "code"): "code_files",
    **{("spec", "code", key): name for key, name in CODE.items()},
    ("spec", "env"): "env",
    ("spec", "framework"): "framework",
    ("spec", "mode"): "mode",
    ("spec", "completion"): "completion",
    ("spec", "retries"): "retries",
    ("spec", "timeLimit"): "time_limit",
    ("spec", "scheduleAfter"): "schedule_after",
    ("spec", "access"): "access",
    ("spec", "notebook"): "notebook",
    ("spec", "hooks"): "hooks",
    **{("spec", "roles", role): f"{role}_flavor" for role in COMPUTING_ROLES},
    **{("spec", "roles", role, "endpoints"): "endpoints" for role in COMPUTING_ROLES},
    **{("spec", "roles", role, "atOnce"): "at_once" for role in COMPUTING_ROLES},
    **{
        ("spec", "roles", name, "count"): f"{name}_count" for name, role in COMPUTING_ROLES.items() if not role.is_fixed
    },
}


def manifest_of(values: Mapping[str, str]) -> tuple[dict[str, Any], list[FieldError]]:
    """A manifest's dictionary from what stands in the fields, and what could not even be written as one (an env without "=")."""
    complaints: list[FieldError] = []
    try:
        env = read_env(values.get("env", ""))
    except ValueError as error:
        env = {}
        complaints.append(FieldError(("spec", "env"), str(error)))
    roles = _roles(values)
    try:
        for role, served in read_endpoints(values.get("endpoints", "")).items():
            roles.setdefault(role, {"flavor": "", "count": "0"})["endpoints"] = served
    except ValueError as error:
        complaints.append(FieldError(("spec", "roles", next(iter(COMPUTING_ROLES)), "endpoints"), str(error)))
    spec: dict[str, Any] = {
        "framework": values.get("framework") or next(iter(COMPUTING)),
        "image": values.get("image", ""),
        "environment": values.get("environment") or None,
        "requirements": values.get("requirements", "").split("\n"),
        "keras": _keras(values),
        "command": values.get("command", ""),
        "code": read_code(values),
        "env": env,
        "input": read_input(values),
        "output": values.get("output") or None,
        "home": values.get("home") or None,
        "outputPath": values.get("output_path", ""),
        "notebook": read_json(values.get("notebook", "")),
        "mode": values.get("mode") or "batch",
        "roles": roles,
        "access": read_access(values.get("access", "")),
        **_completion(values, roles),
        "retries": values.get("retries", "").strip() or None,
        "timeLimit": seconds(values.get("time_limit", ""), values.get("time_limit_unit", "")),
        "scheduleAfter": _utc(values.get("schedule_after", ""), values.get("schedule_zone", "")),
        "hooks": read_hooks(values),
    }
    metadata = {"name": values.get("name", ""), "appcode": values.get("appcode", "")}
    return {"kind": "cluster", "metadata": metadata, "spec": spec}, complaints


def fields_of(manifest: ClusterManifest) -> dict[str, str]:
    """What stands in the fields of a form that is filled from `manifest`: the inverse of `manifest_of`."""
    spec = manifest.spec
    unit = next((unit for unit, size in TIME_UNITS.items() if spec.time_limit and spec.time_limit % size == 0), "hours")
    fields = {
        "appcode": manifest.metadata.appcode,
        "name": manifest.metadata.name,
        "image": spec.image,
        "environment": spec.environment or "",
        "requirements": "\n".join(spec.requirements),
        "input": spec.input.where if spec.input else "",
        **_said(spec.input),
        "output": spec.output or "",
        "keras": str(spec.keras or ""),
        "command": spec.command,
        "code_files": json.dumps(spec.code.files, ensure_ascii=False) if spec.code and spec.code.files else "",
        **{name: getattr(spec.code, key) or "" if spec.code else "" for key, name in CODE.items()},
        "env": write_env(spec.env),
        "framework": spec.framework,
        "mode": spec.mode,
        "completion": spec.completion,
        "at_once": next((str(each.at_once) for each in spec.roles.values() if each.at_once), ""),
        "retries": "" if spec.retries is None else str(spec.retries),
        "time_limit": str(spec.time_limit // TIME_UNITS[unit]) if spec.time_limit else "",
        "time_limit_unit": unit,
        "schedule_after": _local(spec.schedule_after),
        "schedule_zone": "UTC",
        "home": spec.home or "",
        "output_path": spec.output_path,
        "notebook": json.dumps(spec.notebook.model_dump(mode="json"), ensure_ascii=False) if spec.notebook else "",
        "endpoints": write_endpoints(spec),
        "access": write_access(spec.access),
        **write_hooks(spec.hooks),
    }
    for name, role in COMPUTING_ROLES.items():
        role_spec = spec.roles.get(name)
        is_there = role_spec is not None and (role_spec.count > 0 or not role.is_fixed)
        fields[f"{name}_flavor"] = role_spec.flavor if role_spec and is_there else ""
        if not role.is_fixed:
            fields[f"{name}_count"] = str(role_spec.count if role_spec else 0)
    return fields


def field_of(path: tuple[str, ...]) -> str | None:
    """The form's field for a path in the manifest: the longest beginning of the path that has one; None when there is none."""
    return next((FIELD_OF_PATH[path[:n]] for n in range(len(path), 0, -1) if path[:n] in FIELD_OF_PATH), None)


def short_document(manifest: ClusterManifest) -> dict[str, Any]:
    """The manifest as people would write it: without what is the default anyway."""
    document = manifest.model_dump(mode="json", by_alias=True)
    defaults = ClusterSpec.model_fields
    spec = {}
    for name, field in defaults.items():
        key = field.alias or name
        if field.is_required() or getattr(manifest.spec, name) != field.get_default(call_default_factory=True):
            spec[key] = document["spec"][key]
    spec["roles"] = {
        role: {key: value for key, value in said.items() if value or key == "count"}
        for role, said in spec["roles"].items()
    }
    return {**document, "spec": spec}


def read_input(values: Mapping[str, str]) -> Any:
    """What is chosen, with what is said about it."""
    said = {
        key: value
        for key, name in INPUT.items()
        if (value := values.get(name, "")) and value != INPUT_INITIAL.get(name)
    }
    chosen = read_where(values.get("input", ""))
    return {**({"datastore": chosen} if isinstance(chosen, str) else chosen or {}), **said} if said else chosen


def _said(value: InputSpec | None) -> dict[str, str]:
    """What stands in the fields about an input."""
    said = {name: getattr(value, key) for key, name in INPUT.items()} if value else {}
    return {name: str(said.get(name) or INPUT_INITIAL.get(name, "")) for name in INPUT.values()}


def read_code(values: Mapping[str, str]) -> dict[str, Any] | None:
    """What is given of files and of a repository; both together the manifest refuses."""
    said: dict[str, Any] = {key: value for key, name in CODE.items() if (value := values.get(name, "").strip())}
    files = read_json(values.get("code_files", ""))
    return {**said, **({"files": files} if files is not None else {})} or None


def read_hooks(values: Mapping[str, str]) -> Any:
    """Those that are ticked, one's own command, and what is written as JSON, in this order."""
    found: list[Any] = [{"use": name} for name in values.get("hooks_used", "").split()]
    if (command := values.get("hook_command", "")).strip():
        found.append({"on": values.get("hook_on") or "success", "command": command})
    more = read_json(values.get("hooks", ""))
    if more is None:
        return found
    return found + more if isinstance(more, list) else more


def write_hooks(hooks: Sequence[HookSpec]) -> dict[str, str]:
    """The inverse of `read_hooks`: as few as possible as JSON."""
    rest = list(hooks)
    used, own = [], None
    while rest and rest[0].use and rest[0] == HookSpec(use=rest[0].use):
        used.append(str(rest.pop(0).use))
    if rest and rest[0].command and rest[0] == HookSpec(on=rest[0].on, command=rest[0].command):
        own = rest.pop(0)
    more = [each.model_dump(mode="json", by_alias=True, exclude_defaults=True) for each in rest]
    return {
        "hooks_used": " ".join(used),
        "hook_on": own.when if own else "success",
        "hook_command": (own.command or "") if own else "",
        "hooks": json.dumps(more, ensure_ascii=False) if more else "",
    }


def hook_field(path: tuple[str, ...], values: Mapping[str, str]) -> str:
    """In which field stands the hook that a path (`spec.hooks.2.use`) names."""
    number = int(path[2]) if len(path) > 2 and path[2].isdecimal() else 0
    used = len(values.get("hooks_used", "").split())
    if number < used:
        return "hooks_used"
    return "hook_command" if number == used and values.get("hook_command", "").strip() else "hooks"


def read_env(text: str) -> dict[str, Any]:
    """`A=1 | B=2`, or a JSON object for values that this cannot say (spaces at their ends, several lines). Raises ValueError."""
    if text.lstrip().startswith("{"):
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise ValueError(
                f"It begins with “{{” but is not a JSON object: {error.msg}, at character {error.pos}."
            ) from error
        assert isinstance(value, dict)
        return value
    return dict(parse_env(text))


def write_env(env: Mapping[str, str]) -> str:
    """The inverse of `read_env`, in its simpler form wherever that is exact."""
    text = format_env(dict(env))
    try:
        exact = parse_env(text) == env and not text.lstrip().startswith("{")
    except ValueError:
        exact = False
    return text if exact else json.dumps(env, ensure_ascii=True)


def read_endpoints(text: str) -> dict[str, list[dict[str, Any]]]:
    """`master web=8080/health | worker debug=9000` as the endpoints of each role. Raises ValueError naming the part that is no
    such thing; the rest is for the manifest to judge."""
    found: dict[str, list[dict[str, Any]]] = {}
    for part in filter(None, (each.strip() for each in text.split("|"))):
        match = ENDPOINT.fullmatch(part)
        if match is None or match["role"] not in COMPUTING_ROLES:
            raise ValueError(
                f"“{part}” is no endpoint; write ROLE NAME=PORT, for example master web=8080, and divide several by |."
            )
        endpoint = {"name": match["name"], "port": int(match["port"]), "health": match["health"] or "/"}
        found.setdefault(match["role"], []).append(endpoint)
    return found


def write_endpoints(spec: ClusterSpec) -> str:
    """The inverse of `read_endpoints`."""
    return " | ".join(
        f"{role} {each.name}={each.port}{'' if each.health == '/' else each.health}"
        for role, role_spec in spec.roles.items()
        for each in role_spec.endpoints
    )


def read_json(text: str) -> Any:
    """The JSON of a part of the spec; what is none goes on as it is, to be refused by the manifest."""
    try:
        return json.loads(text) if text.strip() else None
    except (ValueError, RecursionError):
        return text


def read_access(text: str) -> dict[str, Any]:
    """`members`, `everybody`, or `people:` and user names divided by commas."""
    to, colon, names = text.partition(":")
    people = [name for name in re.split(r"[,\s]+", names) if name]
    return {"to": to.strip() or "members", **({"people": people} if colon else {})}


def write_access(access: AccessSpec) -> str:
    """The inverse of `read_access`; "" for the usual one."""
    return f"people: {', '.join(access.people)}" if access.people else "" if access.to == "members" else access.to


def _roles(values: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """A role that has neither a flavor nor tasks is not there, nor one of another framework that leaves nothing to choose."""
    driver = COMPUTING.get(values.get("framework", ""), next(iter(COMPUTING.values())))
    asked = {role.name for role in driver.roles}
    roles: dict[str, dict[str, Any]] = {}
    for name, role in COMPUTING_ROLES.items():
        flavor, count = values.get(f"{name}_flavor", ""), values.get(f"{name}_count", "").strip() or "0"
        if role.is_fixed and (name not in asked or (role.leads and not flavor and _has_workers(values, driver))):
            continue
        if role.is_fixed:
            roles[name] = {"flavor": flavor, "count": 1}
        elif flavor or count != "0":
            at_once = values.get("at_once", "").strip() if driver.is_independent and name in asked else ""
            roles[name] = {"flavor": flavor, "count": count, **({"atOnce": at_once} if at_once else {})}
    return roles


def _keras(values: Mapping[str, str]) -> int | str | None:
    """What is chosen, of a framework that has the choice."""
    chosen = values.get("keras", "")
    driver = COMPUTING.get(values.get("framework", ""), next(iter(COMPUTING.values())))
    if not chosen or not driver.has_keras:
        return None
    return int(chosen) if chosen in ("2", "3") else chosen


def _has_workers(values: Mapping[str, str], driver: Framework) -> bool:
    """Whether somebody else can lead."""
    return driver.roles[0].leads and values.get(f"{WORKER.name}_count", "").strip() not in ("", "0")


def _completion(values: Mapping[str, str], roles: Mapping[str, Any]) -> dict[str, str]:
    """What is chosen; nothing where that waits for a role that leads and was left out: then the manifest knows for whom."""
    chosen = values.get("completion") or next(iter(COMPUTING_COMPLETIONS))
    known = COMPUTING_COMPLETIONS.get(chosen)
    if known and known.role not in roles and COMPUTING_ROLES[known.role].leads:
        return {}
    return {"completion": chosen}


def seconds(number: str, unit: str) -> str | int | None:
    """Seconds; what is no number goes on as it is, to be refused by the manifest."""
    text = number.strip()
    if text.isascii() and text.isdigit() and len(text) < 10:
        return int(text) * TIME_UNITS.get(unit, 3600)
    return text or None


def _utc(text: str, zone: str) -> str | None:
    """A time without a zone of its own, as datetime-local gives it, is one in `zone`; what is no time goes on as it is."""
    text = text.strip()
    if not text:
        return None
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError:
        return text
    try:
        return (time if time.tzinfo else time.replace(tzinfo=zone_of(zone))).astimezone(dt.UTC).isoformat()
    except OverflowError:  # the first and the last day that dates know
        return time.replace(tzinfo=dt.UTC).isoformat()


def _local(time: dt.datetime | None) -> str:
    if time is None:
        return ""
    try:
        return time.astimezone(dt.UTC).replace(tzinfo=None).isoformat()
    except OverflowError:  # the first and the last day that dates know
        return time.isoformat()


def fits_datetime_local(text: str) -> bool:
    """Whether a browser's field of type datetime-local can hold `text` (four-digit years, whole seconds)."""
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError:
        return False
    return time.tzinfo is None and time.microsecond == 0 and time.year >= 1000
