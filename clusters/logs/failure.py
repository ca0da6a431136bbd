"""Finds the line of a failed program's log that explains why it failed. Pure; it selects a line and rewords nothing.

The idea: programs report an error where they end, nearly always in a form of their language. The last error in such a
form counts. Without one, the last line does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MOST = 300
# Escape sequences that terminals do not show, and the prefix that torchrun puts before the lines of each process.
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")
_PREFIX = re.compile(r"^\[(?:rank|default)\d+\]:\s?")
_TRACEBACK = "Traceback (most recent call last):"
# `package.SomeError: why` of Python (and "KeyboardInterrupt" alone), then Java, Go, C++ and Rust.
_ERROR = re.compile(
    r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt|Failure|Warning|Exit|Timeout|Group)(?::\s.*|$)"
    r"|Exception in thread .+|panic: .+|fatal error: .+|terminate called .+|thread '.*' .*panicked at .+"
)

# A frame of Python's tracebacks, and files that are not the program's own.
_FRAME = re.compile(r'  File "([^"]+)", line \d+')
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python\d|^<")

# TensorFlow and Keras errors that name only the place; the cause follows in a later line.
_UNSAID = re.compile(r".*:|\S+: Exception encountered when calling .*\.")


def lines_of(log_end: str) -> list[str]:
    """The non-empty lines as a terminal would show them."""
    shown = (_PREFIX.sub("", _ESCAPES.sub("", line).rstrip("\r").rpartition("\r")[2]) for line in log_end.split("\n"))
    return [line.rstrip() for line in shown if line.strip()]


def error_line(log_end: str) -> str:
    """The last error in the form of a language, at most MOST characters; "" if there is none. The first unindented line
    after a traceback is its exception, whatever its class. Where the head of the traceback is cut off, the line must
    look like an error class. An error without a cause is joined with the next line that gives one."""
    found, inside, is_unsaid = "", False, False
    for line in lines_of(log_end):
        if line == _TRACEBACK:
            inside = True
        elif (inside and not line.startswith(" ")) or (not inside and _ERROR.match(line)):
            found, inside, is_unsaid = line, False, bool(_UNSAID.fullmatch(line))
        elif is_unsaid and not inside and not line.startswith((" ", "\t")) and not line.endswith(":"):
            found, is_unsaid = f"{found} {line}", False
    return shortened(found)


def before_error(log_end: str, most: int = 10) -> tuple[list[str], str]:
    """The lines before the error, at most `most`, and the error in the form of a language. No lines and "" without one. Where
    these lines are of libraries alone, the last frame of the program's own code comes first."""
    lines, error = lines_of(log_end), error_line(log_end)
    # An error that is joined with its cause begins with its own line.
    at = next((n for n in reversed(range(len(lines))) if error and error.startswith(shortened(lines[n]))), None)
    if at is None:
        return [], ""
    start = max(0, at - most)
    frame = _own_frame(lines[:at])
    if frame is None or frame >= start:
        return lines[start:at], error
    end = next(n for n in range(frame + 1, at + 1) if n == at or not lines[n].startswith("    "))
    between = [] if end >= start else ["  …"]
    return [*lines[frame:end], *between, *lines[max(start, end) : at]], error


def _own_frame(lines: Sequence[str]) -> int | None:
    """The place of the last frame of a file that belongs to no library, in the traceback with which the lines end."""
    for n in reversed(range(len(lines))):
        if not lines[n].startswith(" "):
            return None
        if (found := _FRAME.match(lines[n])) and not _LIBRARY.search(found[1]):
            return n
    return None


def why(log_end: str) -> str:
    """The error, or else the last line; "" for an empty log."""
    return error_line(log_end) or shortened((lines_of(log_end) or [""])[-1].strip())


def shortened(line: str) -> str:
    return line if len(line) <= MOST else f"{line[: MOST - 1]}…"
