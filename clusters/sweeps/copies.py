"""Trials that share a run: copies of one command, each with its own point. Pure.

The idea: the run's command begins with a table of points, and each copy uses the line of its TASK_INDEX. So a thousand trials
are one run, one Job and one line of the list, and a program sees the same as in its own cluster.
"""

from __future__ import annotations

import shlex
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from clusters.frameworks import variables
from clusters.frameworks.base import MAX_TASKS_PER_ROLE, SHELL
from clusters.manifest.cluster import MAX_COMMAND_BYTES
from clusters.sweeps.manifest import SweepSpec, in_braces, put_in, put_in_value
from clusters.sweeps.parameters import Value, written

ROLE = "worker"
# Maximum number of trials in one run.
MOST = MAX_TASKS_PER_ROLE
TOO_LONG = "The command and the parameters of one trial are longer than a command may be."
# Retries of one task: the maximum in a cluster's manifest.
MOST_RETRIES = 10


def shared_spec(spec: SweepSpec, points: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
    """The ClusterSpec, as JSON, of a run whose copy n trains `points[n]`."""
    template = spec.template
    body: dict[str, Any] = template.model_dump(mode="json", by_alias=True)
    role = body["roles"][ROLE] | {"count": len(points), "atOnce": min(spec.parallel, len(points))}
    return body | {
        "command": f"case $TASK_INDEX in\n{''.join(_lines(points))}esac\n{_program(spec)}",
        "env": {name: text for name, text in spec.kept_env.items() if name not in _in_command(spec)},
        "roles": {ROLE: role},
        "retries": _retries(template.retries, spec.retries),
    }


def _retries(of_task: int | None, of_trial: int) -> int | None:
    """Retries of a task that match `of_trial` runs with `of_task` retries each; None to keep the manifest's default."""
    if of_task is None and not of_trial:
        return None
    return min(MOST_RETRIES, (1 + (of_task or 0)) * (1 + of_trial) - 1)


def fitting(spec: SweepSpec, points: Sequence[Mapping[str, Value]]) -> int:
    """How many of the first points fit in one run's command. 0 if not even one does."""
    room = MAX_COMMAND_BYTES - len(shared_spec(spec, ())["command"].encode())
    sizes = accumulate(len(line.encode()) for line in _lines(points[:MOST]))
    return bisect(list(sizes), room)


def _lines(points: Sequence[Mapping[str, Value]]) -> list[str]:
    return [f"{index}) {_given(point)};;\n" for index, point in enumerate(points)]


def _given(point: Mapping[str, Value]) -> str:
    return "export " + " ".join(f"{name}={shlex.quote(written(value))}" for name, value in sorted(point.items()))


def _in_command(spec: SweepSpec) -> list[str]:
    """Variables of the template that the command sets, because they contain a parameter or a reference that may be one."""
    env, braces = spec.kept_env, in_braces(spec)
    return [name for name in variables.in_order(env) if braces.search(env[name]) or variables.references(env[name])]


def _program(spec: SweepSpec) -> str:
    """The template's variables and command, with shell variables in place of parameters in braces."""
    env, command = spec.kept_env, spec.template.command
    exports = [
        f"export {name}={_joined(put_in_value(spec, env[name]), variables.word)}\n" for name in _in_command(spec)
    ]
    if in_braces(spec).search(command):
        command = f"exec {' '.join(SHELL)} {_joined(put_in(spec, command), shlex.quote)}"
    return "".join(exports) + command


def _joined(parts: Sequence[tuple[str, bool]], quote: Callable[[str], str]) -> str:
    """A shell word: text parts quoted by `quote`, and `"$lr"` for the name `lr`."""
    return "".join(f'"${part}"' if is_name else quote(part) for part, is_name in parts if part or is_name) or "''"
