"""Environment variables that people set: which names and how much text is allowed, and how forms write them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from clusters.frameworks import FRAMEWORKS, variables
from portal.manifests import field_error

MAX_ENV_VARIABLES = 200
MAX_ENV_BYTES = 64 * 1024
# Limits for a hook: the facts of the run are added to its variables.
MAX_HOOK_ENV_VARIABLES = 150
MAX_HOOK_ENV_BYTES = 16 * 1024
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Variables that the portal sets in every task. Those of a framework are listed in its driver.
RESERVED_ENV = frozenset(
    {
        "TASK_INDEX",
        "TASK_RANK",
        variables.SCRIPT,
        "PORTAL_START",
        "PORTAL_LAY",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "NVIDIA_VISIBLE_DEVICES",
        "PORTAL_MODEL",
        "PORTAL_MODEL_NAME",
        "PORTAL_MODEL_VERSION",
        "PORTAL_MODEL_FORMAT",
        "PORTAL_MODEL_SAMPLE",
    }
)


def no_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("A NUL character cannot be passed to a program.")
    return value


def check_env_name(name: str) -> None:
    """Raises ValueError when users may not set `name`."""
    if not ENV_NAME.fullmatch(name):
        raise ValueError(f"“{name}” is not a variable name; use letters, digits and '_', and no digit at the start.")
    if name in RESERVED_ENV:
        raise ValueError(f"{name} is set by the portal.")


def check_env(env: Mapping[str, str], most: int = MAX_ENV_BYTES) -> None:
    """Raises ValueError for names that users may not set, and for more than `most` bytes."""
    for name, text in env.items():
        check_env_name(name)
        no_nul(text)
    if sum(len(name.encode()) + len(text.encode()) for name, text in env.items()) > most:
        raise ValueError(f"All variables together may have {most // 1024} KiB.")
    variables.check(env)


def check_hook_env(env: Mapping[str, str], *path: str) -> None:
    """`check_env` for a hook, which gets the facts of the run in addition. Raises `field_error` below `path`."""
    try:
        check_env(env, MAX_HOOK_ENV_BYTES)
        if len(env) > MAX_HOOK_ENV_VARIABLES:
            raise ValueError(f"At most {MAX_HOOK_ENV_VARIABLES} variables.")
        reserved = FRAMEWORKS["parallel"].reserved_env
        if taken := next((name for name in env if name.startswith("PORTAL_") or name in reserved), ""):
            raise ValueError(f"{taken} is for the portal to set; choose another name.")
    except ValueError as error:
        raise field_error(str(error), *path, "env") from error


def parse_env(text: str) -> dict[str, str]:
    """Parses the New Cluster form's `PYTHONPATH=/demo | DATA_DIR=/elearn/output`, divided by `|` or by lines. Strips
    spaces around parts and names. A value may contain `=`; a `|` inside a value is written `\\|`. Raises ValueError for
    a part without `=` and for a name given twice."""
    env: dict[str, str] = {}
    for part in re.split(r"(?<!\\)\||[\r\n]+", text):
        part = part.replace("\\|", "|").strip()
        if not part:
            continue
        name, equals, value = part.partition("=")
        name = name.strip()
        if not equals:
            raise ValueError(f"“{part}” has no '='; write NAME=value, one a line or divided by |.")
        check_env_name(name)
        if name in env:
            raise ValueError(f"{name} is given twice.")
        env[name] = value.strip()
    return env


def format_env(env: dict[str, str]) -> str:
    """The inverse of `parse_env`, to refill a form (for one-line values without leading or trailing spaces)."""
    return " | ".join(f"{name}={value}".replace("|", "\\|") for name, value in env.items())
