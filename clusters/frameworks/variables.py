"""References in the variables that people give a cluster: `$NAME`, `${NAME}` and `$(NAME)` mean another variable. Pure.

A reference means the entry of that name in the same ENV, in whatever order the entries stand; else, and in an entry's own
value, what the image or the portal sets: `PATH=/opt/tool/bin:$PATH`. `$$` is a dollar. A reference to what is not set stays
as written, as in Kubernetes.

Nobody but the image knows its variables, so a shell replaces references where the task starts, on every cloud alike. Values stand
in SCRIPT, a variable that the program does not see, and not in an argument.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter

SCRIPT = "PORTAL_ENV"
# What a shell runs first; nothing where no SCRIPT is set.
PREAMBLE = f'eval "${SCRIPT}"; unset {SCRIPT}; '

_NAME = "[A-Za-z_][A-Za-z0-9_]*"
_REFERENCE = re.compile(rf"\$\$|\$(?:({_NAME})|\{{({_NAME})\}}|\(({_NAME})\))")
# Where every image has its shell.
_SYSTEM = {"/usr/bin", "/bin"}


def references(text: str) -> set[str]:
    """The names that `text` refers to."""
    return {name for match in _REFERENCE.finditer(text) if (name := _named(match))}


def word(text: str) -> str:
    """A word of a shell that is `text` with its references replaced."""
    found, end = [], 0
    for match in _REFERENCE.finditer(text):
        found += [_quoted(text[end : match.start()]), _shell(match)]
        end = match.end()
    return "".join([*found, _quoted(text[end:])]) or "''"


def _quoted(text: str) -> str:
    return shlex.quote(text) if text else ""


def _shell(match: re.Match[str]) -> str:
    name = _named(match)
    as_written = match[0].replace("$", "\\$").replace("}", "\\}")
    return f'"${{{name}-{as_written}}}"' if name else "'$'"


def literal(text: str) -> str:
    """`text` as a value that refers to nothing."""
    return text.replace("$", "$$")


def apart(text: str) -> str:
    """`text` such that what it means does not depend on what is written before or behind it."""
    parts = [(match.start(), match.end(), _named(match)) for match in _REFERENCE.finditer(text)]
    found, end = [], 0
    for start, stop, name in parts:
        found += [literal(text[end:start]), f"${{{name}}}" if name else "$$"]
        end = stop
    return "".join([*found, literal(text[end:])])


def given(env: Mapping[str, str]) -> dict[str, str]:
    """`env` as a task is given it: values without references exactly, and in SCRIPT how the others are made."""
    made = [name for name in in_order(env) if references(env[name])]
    plain = {name: _REFERENCE.sub("$", text) for name, text in env.items() if name not in made}
    if not made:
        return plain
    return {**plain, SCRIPT: "".join(f"export {name}={word(env[name])}\n" for name in made)}


def started(argv: tuple[str, ...], env: Mapping[str, str]) -> tuple[str, ...]:
    """`argv` with the variables that `given` has left to the task's start."""
    if not any(map(references, env.values())):
        return argv
    return ("bash", "-c", f'{PREAMBLE}exec "$@"', "bash", *argv)


def in_order(env: Mapping[str, str]) -> list[str]:
    """The names, each behind those that it refers to. Raises ValueError for names that refer to each other."""
    sorter = TopologicalSorter({name: sorted((references(text) & env.keys()) - {name}) for name, text in env.items()})
    try:
        return list(sorter.static_order())
    except CycleError as error:
        names = " → ".join(reversed(error.args[1]))
        raise ValueError(f"These variables refer to each other: {names}.") from error


def check(env: Mapping[str, str]) -> None:
    """Raises ValueError for variables with which no program could be started."""
    in_order(env)
    path = env.get("PATH")
    if path is not None and "PATH" not in references(path) and not set(path.split(":")) >= _SYSTEM:
        raise ValueError(f"Without /usr/bin and /bin no program is found; write PATH={path or '/opt/tool/bin'}:$PATH.")


def _named(match: re.Match[str]) -> str:
    return match[1] or match[2] or match[3] or ""
