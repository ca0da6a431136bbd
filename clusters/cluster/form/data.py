"""Conversion between form fields and a cluster manifest.

`fields_of` is the inverse of `manifest_of`: every manifest survives form → POST → manifest, except for carriage returns
in a command, which browsers do not send. `ClusterManifest` finds errors; `FIELD_OF_PATH` maps their paths to fields.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from clusters.admission.taking import GRACE_SECONDS
from clusters.frame.env_text import read_env, write_env
from clusters.frameworks import COMPUTING, COMPUTING_COMPLETIONS, COMPUTING_ROLES
from clusters.frameworks.base import WORKER, Framework
from clusters.manifest.cluster import AccessSpec, ClusterManifest, ClusterSpec
from clusters.manifest.hook_spec import HookSpec
from clusters.manifest.hook_starters import COPY_TO, NOTIFY, STARTERS, answers_of, starter_of, why_not
from clusters.manifest.input import InputSpec, read_where
from clusters.results.view import seconds_of
from portal.errors import FieldError
from portal.text.zones import zone_of

# Largest first: a filled form shows the largest unit that leaves a whole number.
TIME_UNITS = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}
UNIT_CHOICES = [(unit, unit) for unit in reversed(TIME_UNITS)]
CLASS_CHOICES = [
    ("normal", "Normal: takes its turn in this appcode"),
    ("urgent", "Urgent: before the other runs of this appcode; may take their GPUs"),
    ("spare", "Spare: on GPUs that nobody else needs; may be taken back at any time"),
]

PLACEMENT_CHOICES = [
    ("pack", "Near each other: on few nodes, in one rack if it has room"),
    ("spread", "Apart: each on another node, in another rack, if there are enough"),
]

INPUT = {
    "path": "input_path",
    "version": "input_version",
    "mode": "input_mode",
    "fold": "input_fold",
    "folds": "input_folds",
}
INPUT_INITIAL = {"input_mode": "auto"}

# The field in which a starter hook is answered, and the key of the hook that the answer becomes.
ANSWER_OF = {COPY_TO: "hook_copy_to", NOTIFY: "hook_address"}
ANSWERED_BY = {COPY_TO: "output", NOTIFY: "env"}

# Fields that hold JSON: what counts is its value, however a browser writes it.
JSON_FIELDS = ("code_files", "notebook", "hooks")

CODE = {"git": "code_git", "ref": "code_ref", "path": "code_path"}

ENDPOINT = re.compile(r"(?P<role>\S+)\s+(?P<name>[^\s=]+)=(?P<port>[0-9]{1,9})(?P<health>/\S*)?")

# Fields by dotted path in the manifest; the longest prefix of a path names its field.
FIELD_OF_PATH: dict[str, str] = {
    "metadata.appcode": "appcode",
    "metadata.name": "name",
    **{
        f"spec.{name}": name
        for name in (
            "image", "environment", "requirements", "keras", "input", "output", "home", "command", "env", "framework", "mode",
            "completion", "retries", "access", "notebook", "hooks",
        )
    },
    "spec.outputPath": "output_path",
    "spec.timeLimit": "time_limit",
    "spec.terminationGracePeriod": "termination_grace_period",
    "spec.priorityClass": "priority_class",
    "spec.placement": "placement",
    "spec.scheduleAfter": "schedule_after",
    "spec.code": "code_files",
    **{name: name for name in ANSWER_OF.values()},
    **{f"spec.input.{key}": name for key, name in INPUT.items()},
    **{f"spec.code.{key}": name for key, name in CODE.items()},
    **{f"spec.roles.{role}": f"{role}_flavor" for role in COMPUTING_ROLES},
    **{f"spec.roles.{role}.endpoints": "endpoints" for role in COMPUTING_ROLES},
    **{f"spec.roles.{role}.atOnce": "at_once" for role in COMPUTING_ROLES},
    **{f"spec.roles.{name}.count": f"{name}_count" for name, role in COMPUTING_ROLES.items() if not role.is_fixed},
}  # fmt: skip


def manifest_of(values: Mapping[str, str]) -> tuple[dict[str, Any], list[FieldError]]:
    """The manifest document for these field values, and errors for values that no manifest can hold (an env without "=")."""
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
    complaints += _unanswered(values)
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
        "terminationGracePeriod": values.get("termination_grace_period", "").strip() or GRACE_SECONDS,
        "priorityClass": values.get("priority_class") or "normal",
        "placement": values.get("placement") or "pack",
        "scheduleAfter": _utc(values.get("schedule_after", ""), values.get("schedule_zone", "")),
        "hooks": read_hooks(values),
    }
    metadata = {"name": values.get("name", ""), "appcode": values.get("appcode", "")}
    return {"kind": "cluster", "metadata": metadata, "spec": spec}, complaints


def fields_of(manifest: ClusterManifest) -> dict[str, str]:
    """The inverse of `manifest_of`: field values for `manifest`."""
    spec = manifest.spec
    limit, unit = duration(spec.time_limit)
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
        "time_limit": limit,
        "time_limit_unit": unit,
        "termination_grace_period": str(spec.termination_grace_period),
        "priority_class": spec.priority_class,
        "placement": spec.placement,
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


def short_document(manifest: ClusterManifest) -> dict[str, Any]:
    """The manifest without default values."""
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
    """The chosen input, with its options."""
    said = {
        key: value
        for key, name in INPUT.items()
        if (value := values.get(name, "")) and value != INPUT_INITIAL.get(name)
    }
    chosen = read_where(values.get("input", ""))
    return {**({"datastore": chosen} if isinstance(chosen, str) else chosen or {}), **said} if said else chosen


def _said(value: InputSpec | None) -> dict[str, str]:
    """Field values of an input's options."""
    said = {name: getattr(value, key) for key, name in INPUT.items()} if value else {}
    return {name: str(said.get(name) or INPUT_INITIAL.get(name, "")) for name in INPUT.values()}


def read_code(values: Mapping[str, str]) -> dict[str, Any] | None:
    """The files and the repository. The manifest refuses both together."""
    said: dict[str, Any] = {key: value for key, name in CODE.items() if (value := values.get(name, "").strip())}
    files = read_json(values.get("code_files", ""))
    return {**said, **({"files": files} if files is not None else {})} or None


def read_hooks(values: Mapping[str, str]) -> Any:
    """The ticked hooks of the appcode, the ticked starters, the command typed here, and further ones as JSON, in this order."""
    found: list[Any] = [{"use": name} for name in values.get("hooks_used", "").split()]
    for name in _answered(values):
        made = STARTERS[name].hook(*_answers(values))
        found.append(made.model_dump(mode="json", by_alias=True, exclude_defaults=True))
    if (command := values.get("hook_command", "")).strip():
        found.append({"on": values.get("hook_on") or "success", "command": command})
    more = read_json(values.get("hooks", ""))
    if more is None:
        return found
    return found + more if isinstance(more, list) else more


def _starters(values: Mapping[str, str]) -> list[str]:
    said = values.get("hook_starters", "").split()
    return [name for name in STARTERS if name in said]


def _answered(values: Mapping[str, str]) -> list[str]:
    """The ticked starters that are whole hooks. `_unanswered` complains of the others."""
    return [name for name in _starters(values) if not why_not(name, *_answers(values))]


def _answers(values: Mapping[str, str]) -> tuple[str, str]:
    return values.get("hook_copy_to", ""), values.get("hook_address", "").strip()


def _unanswered(values: Mapping[str, str]) -> list[FieldError]:
    """What ticked starters still need."""
    return [
        FieldError((ANSWER_OF[name],), sentence)
        for name in _starters(values)
        if (sentence := why_not(name, *_answers(values)))
    ]


def write_hooks(hooks: Sequence[HookSpec]) -> dict[str, str]:
    """The inverse of `read_hooks`, with as little JSON as possible."""
    rest = list(hooks)
    used, own = [], None
    while rest and rest[0].use and rest[0] == HookSpec(use=rest[0].use):
        used.append(str(rest.pop(0).use))
    ticked: dict[str, tuple[str, str]] = {}
    for name in STARTERS:
        if rest and rest[0].name == name and starter_of(rest[0]):
            ticked[name] = answers_of(rest.pop(0))
    if rest and rest[0].command and rest[0] == HookSpec(on=rest[0].on, command=rest[0].command):
        own = rest.pop(0)
    more = [each.model_dump(mode="json", by_alias=True, exclude_defaults=True) for each in rest]
    return {
        "hooks_used": " ".join(used),
        "hook_starters": " ".join(ticked),
        "hook_copy_to": ticked.get(COPY_TO, ("", ""))[0],
        "hook_address": ticked.get(NOTIFY, ("", ""))[1],
        "hook_on": own.when if own else "success",
        "hook_command": (own.command or "") if own else "",
        "hooks": json.dumps(more, ensure_ascii=False) if more else "",
    }


def hook_field(path: tuple[str, ...], values: Mapping[str, str]) -> str:
    """The field of the hook that a path (`spec.hooks.2.use`) names."""
    number = int(path[2]) if len(path) > 2 and path[2].isdecimal() else 0
    used = len(values.get("hooks_used", "").split())
    if number < used:
        return "hooks_used"
    starters = _answered(values)
    if number < used + len(starters):
        name = starters[number - used]
        return ANSWER_OF[name] if path[3:4] == (ANSWERED_BY.get(name),) else "hook_starters"
    number -= len(starters)
    return "hook_command" if number == used and values.get("hook_command", "").strip() else "hooks"


def read_endpoints(text: str) -> dict[str, list[dict[str, Any]]]:
    """Parses `master web=8080/health | worker debug=9000` into endpoints by role. Raises ValueError with a malformed
    part; the manifest validates the rest."""
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
    """JSON of a part of the spec. Invalid JSON is returned as text, for the manifest to refuse."""
    try:
        return json.loads(text) if text.strip() else None
    except (ValueError, RecursionError):
        return text


def read_access(text: str) -> dict[str, Any]:
    """Parses `members`, `everybody`, or `people:` with user names separated by commas."""
    to, colon, names = text.partition(":")
    people = [name for name in re.split(r"[,\s]+", names) if name]
    return {"to": to.strip() or "members", **({"people": people} if colon else {})}


def write_access(access: AccessSpec) -> str:
    """The inverse of `read_access`; "" for the default."""
    return f"people: {', '.join(access.people)}" if access.people else "" if access.to == "members" else access.to


def _roles(values: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The requested roles. Leaves out roles without flavor and tasks, and fixed roles that the framework does not have."""
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
    """The chosen Keras version, if the framework has the choice."""
    chosen = values.get("keras", "")
    driver = COMPUTING.get(values.get("framework", ""), next(iter(COMPUTING.values())))
    if not chosen or not driver.has_keras:
        return None
    return int(chosen) if chosen in ("2", "3") else chosen


def _has_workers(values: Mapping[str, str], driver: Framework) -> bool:
    """Whether a worker can lead in place of the first role."""
    return driver.roles[0].leads and values.get(f"{WORKER.name}_count", "").strip() not in ("", "0")


def _completion(values: Mapping[str, str], roles: Mapping[str, Any]) -> dict[str, str]:
    """The chosen completion. Empty if it waits for an omitted leading role: then the manifest picks the default."""
    chosen = values.get("completion") or next(iter(COMPUTING_COMPLETIONS))
    known = COMPUTING_COMPLETIONS.get(chosen)
    if known and known.role not in roles and COMPUTING_ROLES[known.role].leads:
        return {}
    return {"completion": chosen}


def seconds(number: str, unit: str) -> str | int | None:
    """Seconds: of a number by its unit, of “90 min” by itself. Other text is returned as is, for the manifest to refuse."""
    text = number.strip()
    if text.isascii() and text.isdigit() and len(text) < 10:
        return int(text) * TIME_UNITS.get(unit, 3600)
    said = seconds_of(text) if len(text) < 20 else None
    return text or None if said is None else int(said)


def duration(seconds: int | None) -> tuple[str, str]:
    """The inverse of `seconds`: a number and its unit."""
    if not seconds:
        return "", "hours"
    unit = next(unit for unit, size in TIME_UNITS.items() if seconds % size == 0)
    return str(seconds // TIME_UNITS[unit]), unit


def _utc(text: str, zone: str) -> str | None:
    """A UTC time. A time without zone, as from datetime-local, is in `zone`; invalid text is returned as is."""
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
    """Whether a datetime-local field can hold `text` (four-digit years, whole seconds)."""
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError:
        return False
    return time.tzinfo is None and time.microsecond == 0 and time.year >= 1000
