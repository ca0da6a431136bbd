"""From the end of a failed program's log to the one line that says why. Pure, and only a choice: nothing is added or reworded.

The idea: programs say why they end where they end, and nearly all say it in a form of their language. So the last error
in such a form counts, and where there is none the last line.
"""

from __future__ import annotations

import re

MOST = 300
# What terminals would not show, and what torchrun puts before the lines of each process.
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")
_PREFIX = re.compile(r"^\[(?:rank|default)\d+\]:\s?")
_TRACEBACK = "Traceback (most recent call last):"
# `package.SomeError: why` of Python (and "KeyboardInterrupt" alone), then Java, Go, C++ and Rust.
_ERROR = re.compile(
    r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt|Failure|Warning|Exit|Timeout|Group)(?::\s.*|$)"
    r"|Exception in thread .+|panic: .+|fatal error: .+|terminate called .+|thread '.*' .*panicked at .+"
)

# Errors of TensorFlow and Keras that say where, and why in a line of their own further down.
_UNSAID = re.compile(r".*:|\S+: Exception encountered when calling .*\.")


def lines_of(log_end: str) -> list[str]:
    """Its lines as a terminal would show them, without empty ones."""
    shown = (_PREFIX.sub("", _ESCAPES.sub("", line).rstrip("\r").rpartition("\r")[2]) for line in log_end.split("\n"))
    return [line.rstrip() for line in shown if line.strip()]


def error_line(log_end: str) -> str:
    """The last error in the form of a language, at most MOST characters; "" when there is none.

    What follows a traceback's indented lines is its exception, whatever its class is called; of one that is cut off at its
    beginning the name has to tell. Where it does not say why, the next line that does is joined to it."""
    found, inside, is_unsaid = "", False, False
    for line in lines_of(log_end):
        if line == _TRACEBACK:
            inside = True
        elif (inside and not line.startswith(" ")) or (not inside and _ERROR.match(line)):
            found, inside, is_unsaid = line, False, bool(_UNSAID.fullmatch(line))
        elif is_unsaid and not inside and not line.startswith((" ", "\t")) and not line.endswith(":"):
            found, is_unsaid = f"{found} {line}", False
    return shortened(found)


def why(log_end: str) -> str:
    """The error, or else the last line; "" for a program that wrote nothing."""
    return error_line(log_end) or shortened((lines_of(log_end) or [""])[-1].strip())


def shortened(line: str) -> str:
    return line if len(line) <= MOST else f"{line[: MOST - 1]}…"
