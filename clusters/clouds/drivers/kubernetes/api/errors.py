"""What an error of the API server means: which exception, and the server's message without the values that it quotes."""

from __future__ import annotations

import json
import re
from typing import Any

import orjson
import urllib3

from clusters.clouds.drivers.base import CloudError, CloudRefused, Unanswered, WatchExpired

# The API server was restored to an older state, so our position is unknown to it.
_IN_THE_FUTURE = "ResourceVersionTooLarge"
_OTHER_UID = re.compile(r"UID in (the )?precondition")
STRANGER = (
    "Kubernetes does not accept the portal's credentials: they have expired or were revoked. An administrator gives new ones "
    "under Clouds."
)
LONGEST_SENTENCE = 500
# Messages that quote a value.
_VALUE = re.compile(r"(Invalid value|Unsupported value|Duplicate value):")
_WORD = re.compile(r"[\w.+-]+: ")
_JSON = json.JSONDecoder()


class Refused(CloudRefused):
    """The API server refused, with an HTTP status of 4xx."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Missing(Refused):
    """404: the object, or the namespace for it, does not exist. Also raised if an object of that name has another uid."""


class Taken(Refused):
    """409: the name is taken; or another manager owns a field, and the apply was not forced."""


class Forbidden(CloudError):
    """403: the portal lacks the right."""


class Unavailable(CloudError):
    """A retry may succeed. `after`: the seconds that the server asked to wait, None if it did not."""

    def __init__(self, message: str, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after


class Unreachable(Unavailable, Unanswered):
    """No answer at all, not even from a proxy in between."""


def raise_event(status: dict[str, Any]) -> None:
    causes = {each.get("reason") for each in (status.get("details") or {}).get("causes") or []}
    if status.get("code") == 410 or _IN_THE_FUTURE in causes:
        raise WatchExpired(status.get("message", "The position is too old."))
    raise Unavailable(status.get("message", "The watch failed."))


def _is_another(code: int, status: dict[str, Any]) -> bool:
    """Returns whether the object has another uid than requested, as reported by validation (422) or by the store (409)."""
    if code == 422:
        return any(each.get("field") == "metadata.uid" for each in (status.get("details") or {}).get("causes") or [])
    return code == 409 and bool(_OTHER_UID.search(status.get("message", "")))


def said(status: dict[str, Any]) -> str:
    """Returns the API server's message without the values that it quotes: those of a pod template are a program's environment,
    which may contain secrets, and the message goes to Events, webhooks and logs."""
    message = str(status.get("message") or "")
    if status.get("reason") == "Invalid":
        causes = (status.get("details") or {}).get("causes") or []
        parts = dict.fromkeys(
            f"{each.get('field') or 'object'}: {_detail(each.get('message') or '')}" for each in causes
        )
        message = "; ".join(parts) or message
    if (found := _VALUE.search(message)) is not None:
        message = message[: found.start()] + found[1].lower()
    line = message.partition("\n")[0].strip()
    return line if len(line) <= LONGEST_SENTENCE else f"{line[: LONGEST_SENTENCE - 1]}…"


def _detail(message: str) -> str:
    """Returns the explanation in a message such as “Invalid value: 7: must be less than 5”. Values are JSON, a word, or Go's
    notation; for other values only the kind of error is returned. Lines after the first are lists of differences and are
    dropped."""
    found = _VALUE.match(message)
    if found is None:
        return message.partition("\n")[0]
    rest = message[found.end() :].lstrip()
    return _behind_value(rest).partition("\n")[0] or found[1].lower()


def _behind_value(text: str) -> str:
    if word := _WORD.match(text):
        return text[word.end() :]
    try:
        end = _JSON.raw_decode(text)[1]
    except ValueError:
        # core.PodTemplateSpec{…}: its last brace ends the value, or is in the words after it.
        end = len(text) if text.startswith('"') else text.rfind("}") + 1
    return text[end + 2 :] if text.startswith(": ", end) else ""


def error_of(answer: urllib3.BaseHTTPResponse, data: bytes) -> CloudError:
    try:
        status: dict[str, Any] = orjson.loads(data)
    except ValueError:
        status = {}
    if answer.status == 401:
        return CloudError(STRANGER)
    message = said(status) or data.decode(errors="replace")[:300] or f"HTTP {answer.status}"
    causes = {each.get("reason") for each in (status.get("details") or {}).get("causes") or []}
    if answer.status == 410 or _IN_THE_FUTURE in causes:
        return WatchExpired(message)
    if answer.status == 404 or _is_another(answer.status, status):
        return Missing(404, message)
    if "FieldManagerConflict" in causes:
        return Taken(409, message)
    if answer.status in (408, 409, 429) or answer.status >= 500:
        after = answer.headers.get("Retry-After", "")
        return Unavailable(message, float(after) if after.isdigit() else None)
    # The portal's rights, a terminating namespace, an object quota: not the fault of any run.
    if answer.status == 403 and " cannot " in message:
        return Forbidden(message)
    if "NamespaceTerminating" in causes or (answer.status == 403 and "exceeded quota" in message):
        return CloudError(message)
    return Refused(answer.status, message)


def plain(error: BaseException) -> str:
    """Returns the reason without names of Python classes and error numbers."""
    while True:
        inner = [each for each in (getattr(error, "reason", None), *error.args[1:2]) if isinstance(each, BaseException)]
        if not inner:
            break
        error = inner[0]
    text = re.sub(r"^.*\[Errno -?\d+\] |^\w+\([^)]*\): ", "", str(error))
    return (text if "(" in text else text.removesuffix(")")) or type(error).__name__
