"""Values of variables and options that a link fills into the form: `?set=LR=0.3`. Pure.

A link comes from anybody, so it only changes what the definition has already, to a plain word or number. It can add neither a
variable such as LD_PRELOAD nor a command, and whoever opens it sees what changed before anything runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from clusters.frame.env_text import read_env, write_env
from clusters.results.values import options

MAX_VALUES = 8
_SET = re.compile(r"([A-Za-z_][\w.-]{0,99})=([\w.+-]{1,100})", re.ASCII)


def set_values(fields: Mapping[str, str], said: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The fields of a form with these values, and what names neither a variable nor an option of it."""
    env, command, unknown = dict(read_env(fields["env"])), fields["command"], []
    for text in said[:MAX_VALUES]:
        found = _SET.fullmatch(text)
        name = _meant(found[1], list(env)) if found else ""
        if found and name:
            env[name] = found[2]
        elif found and (changed := _with_option(command, found[1], found[2])):
            command = changed
        else:
            unknown.append(text.partition("=")[0][:100])
    return {**fields, "env": write_env(env), "command": command}, unknown


def _with_option(command: str, typed: str, value: str) -> str:
    """The command with another value of an option that it has once, else ""."""
    before = list(options(command))
    name = _meant(typed, [each for each, _ in before])
    wanted = [(each, value if each == name else old) for each, old in before]
    written = re.compile(rf"((?<!\S)(?:--|\++)?{re.escape(name)}(?:=|[ \t]+))[^\s;|&]+")
    changed, count = written.subn(lambda found: found[1] + value, command)
    return changed if name and count == 1 and list(options(changed)) == wanted else ""


def _meant(typed: str, names: Sequence[str]) -> str:
    """The one name that is typed, in any case and with any hyphens; "" for none or several."""
    alike = [name for name in names if _plain(name) == _plain(typed)]
    exact = [name for name in alike if name == typed] or alike
    return exact[0] if len(exact) == 1 else ""


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")
