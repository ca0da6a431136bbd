"""References in a cluster's variables: `$NAME`, `${NAME}` and `$(NAME)` mean another variable. Pure.

A reference means the entry of that name in the same ENV, in any order. Without such an entry, and in the entry's own value, it
means the variable that the image or the portal sets: `PATH=/opt/tool/bin:$PATH`. `$$` is a dollar sign. A reference to an unset
variable stays as written, as in Kubernetes.

Only the image knows its variables, so a shell replaces references when the task starts, on every cloud alike. The values are in
SCRIPT, a variable hidden from the program, rather than in an argument.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter

SCRIPT = "PORTAL_ENV"
# The shell runs this first. It does nothing if SCRIPT is not set.
PREAMBLE = f'eval "${SCRIPT}"; unset {SCRIPT}; '

_NAME = "[A-Za-z_][A-Za-z0-9_]*"
_REFERENCE = re.compile(rf"\$\$|\$(?:({_NAME})|\{{({_NAME})\}}|\(({_NAME})\))")
# The folders of the shell in every image.
_SYSTEM = {"/usr/bin", "/bin"}


def references(text: str) -> set[str]:
    return {name for match in _REFERENCE.finditer(text) if (name := _named(match))}


def word(text: str) -> str:
    """Returns a shell word that expands to `text` with its references replaced."""
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
    """Escapes `text` so that it contains no references."""
    return text.replace("$", "$$")


def apart(text: str) -> str:
    """Rewrites `text` so that text before or after it cannot change its references."""
    parts = [(match.start(), match.end(), _named(match)) for match in _REFERENCE.finditer(text)]
    found, end = [], 0
    for start, stop, name in parts:
        found += [literal(text[end:start]), f"${{{name}}}" if name else "$$"]
        end = stop
    return "".join([*found, literal(text[end:])])


def given(env: Mapping[str, str]) -> dict[str, str]:
    """Returns `env` for a task: values without references literally, and in SCRIPT the shell code that sets the others."""
    made = [name for name in in_order(env) if references(env[name])]
    plain = {name: _REFERENCE.sub("$", text) for name, text in env.items() if name not in made}
    if not made:
        return plain
    return {**plain, SCRIPT: "".join(f"export {name}={word(env[name])}\n" for name in made)}


def started(argv: tuple[str, ...], env: Mapping[str, str]) -> tuple[str, ...]:
    """Returns `argv` preceded by running SCRIPT, if any value has references."""
    if not any(map(references, env.values())):
        return argv
    return ("bash", "-c", f'{PREAMBLE}exec "$@"', "bash", *argv)


def in_order(env: Mapping[str, str]) -> list[str]:
    """Returns the names in dependency order. Raises ValueError for circular references."""
    sorter = TopologicalSorter({name: sorted((references(text) & env.keys()) - {name}) for name, text in env.items()})
    try:
        return list(sorter.static_order())
    except CycleError as error:
        names = " → ".join(reversed(error.args[1]))
        raise ValueError(f"These variables refer to each other: {names}.") from error


def check(env: Mapping[str, str]) -> None:
    """Raises ValueError for circular references, and for a PATH that would hide the system's programs."""
    in_order(env)
    path = env.get("PATH")
    if path is not None and "PATH" not in references(path) and not set(path.split(":")) >= _SYSTEM:
        raise ValueError(f"Without /usr/bin and /bin no program is found; write PATH={path or '/opt/tool/bin'}:$PATH.")


def _named(match: re.Match[str]) -> str:
    return match[1] or match[2] or match[3] or ""
