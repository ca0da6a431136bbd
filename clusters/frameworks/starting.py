"""How the command of a task starts, on every cloud alike: in a folder that it can write, and where pip can install. Pure.

A shell does both in the task, so a cloud gives no more than an empty folder at WORK, and images of strangers need nothing. The
folder is a copy of where the image, or the run's code, would have the command start: programs write beside themselves (./logs,
model.keras), and code and image stay as they are for the other tasks. Times of files are kept, which tells what is the
program's own when WORK is stored.

Simpler ones that were refused: the read-only folder under a file system that is laid over it (overlayfs wants rights that a task
has not, on Kubernetes least of all); `pip install --user`, which an image that is a virtual environment does not see.
"""

from __future__ import annotations

from collections.abc import Sequence

from clusters.frameworks.programs import whole

WORK = "/elearn/work"  # as in drivers/outputs.py
CODE = "/elearn/code"
# Goes with the task, like all of its /tmp.
LAYER = "/tmp/.packages"  # noqa: S108  the task's own

# Variables with the script and with the program that makes the layer. They are written once per run: in each of a thousand pods
# they would be half of what the control plane keeps and sends.
SCRIPT, PROGRAM = "PORTAL_START", "PORTAL_LAY"
_INSTALLED = f'export PATH="{LAYER}/bin:$HOME/.local/bin:$PATH" VIRTUAL_ENV={LAYER}'
# `/` and /elearn are not a program's own. Of code all is copied, though it starts in a folder of it. A ConfigMap shows files by
# links, and has them below ..data. What is there already was left by an earlier attempt.
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
    """`argv` after that; it needs the variables of `shared`."""
    return ("sh", "-c", f'eval "${SCRIPT}"', "sh", *argv)


def shared() -> dict[str, str]:
    """Variables that are the same for every task of a run."""
    return {SCRIPT: _COPY + _LAY, PROGRAM: whole("start.py")}


def beside(argv: Sequence[str]) -> tuple[str, ...]:
    """`argv`, run beside a program that was started so, where that is and with what that sees."""
    return ("sh", "-c", _BESIDE, "sh", *argv)
