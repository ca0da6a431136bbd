"""Runs that an earlier version of the portal has started: their pods hold what they share themselves, under longer addresses.

A Job never takes another template, and another one of a service would have its pods replaced. So what was started as it was then
is put right as it was then. Their owners can be told by not being immutable. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clusters.clouds.base import Plan, literal
from clusters.clouds.kubernetes import names

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


def is_of_earlier(owner: Mapping[str, Any]) -> bool:
    return not owner.get("immutable")


def as_planned(plan: Plan) -> Plan:
    """As it was planned then, to the byte."""
    base = names.base_name(plan.run)
    address = re.compile(rf"(?<=[0-9])\.{re.escape(base)}(?=:{names.PORT}|$)")

    def written(text: str) -> str:
        whole = _REFERENCE.sub(lambda m: literal(plan.shared[m[1]]) if m[1] in plan.shared else m[0], text)
        return address.sub(f".{base}.{plan.run.namespace}.svc", whole)

    roles = (replace(role, env={name: written(text) for name, text in role.env.items()}) for role in plan.roles)
    return replace(plan, roles=tuple(roles), shared={})
