"""Starts a task's command on every cloud in a writable folder and with a working pip. Pure.

A shell inside the task prepares both, so a cloud only provides an empty folder at WORK, and images need nothing special. The
folder is a copy of the directory where the command would start (of the image or of the run's code): programs write beside
themselves (./logs, model.keras), and code and image stay unchanged for other tasks. File times are kept: they identify the
program's own files when WORK is stored.

Rejected alternatives: overlayfs over the read-only folder (needs privileges that tasks lack, above all on Kubernetes); `pip
install --user` (invisible if the image's Python is a virtual environment).
"""

from __future__ import annotations

from collections.abc import Sequence

from clusters.frameworks.programs import text

WORK = "/elearn/work"  # same value as in drivers/outputs.py
CODE = "/elearn/code"
# In /tmp, so deleted with the task.
LAYER = "/tmp/.packages"  # noqa: S108  the task's own

# Variables that hold the script and the program that makes the layer. Written once per run: repeated in a thousand pods they
# would be half of what the control plane stores and sends.
SCRIPT, PROGRAM = "PORTAL_START", "PORTAL_LAY"
_INSTALLED = f'export PATH="{LAYER}/bin:$HOME/.local/bin:$PATH" VIRTUAL_ENV={LAYER}'
# Does not copy `/` and /elearn. Copies all of the code, even if the command starts in a folder of it. Files of a ConfigMap are
# links into ..data. Keeps existing files (-n), which are from an earlier attempt.
_COPY = f"""\
if [ -w {WORK} ]; then
  from=$PWD; to={WORK}
  case "$PWD/" in
    //|/elearn/) from=;;
    {CODE}/*) from={CODE}; to={WORK}${{PWD#{CODE}}};;
  esac
  [ -d "$from/..data" ] && from=$from/..data
  if [ "$from" ]; then cp -Rnp "$from/." {WORK}/ 2>/dev/null; chmod -R u+w {WORK} 2>/dev/null; fi
  cd "$to"
fi
"""
_LAY = f"""\
python=$(command -v python || command -v python3) && "$python" -I -c "${PROGRAM}" {LAYER} && {_INSTALLED}
unset {SCRIPT} {PROGRAM}
exec "$@"
"""
_BESIDE = f'[ -d {LAYER} ] && {_INSTALLED}; [ -w {WORK} ] && cd {WORK}; exec "$@"'


def started(argv: Sequence[str]) -> tuple[str, ...]:
    """Returns `argv` preceded by these steps; requires the variables of `shared`."""
    return ("sh", "-c", f'eval "${SCRIPT}"', "sh", *argv)


def shared() -> dict[str, str]:
    """Returns the variables that are equal for all tasks of a run."""
    return {SCRIPT: _COPY + _LAY, PROGRAM: text("start.py")}


def beside(argv: Sequence[str]) -> tuple[str, ...]:
    """Returns `argv` to run beside a program started so: in its folder and with its packages."""
    return ("sh", "-c", _BESIDE, "sh", *argv)
