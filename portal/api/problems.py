"""Errors of the REST API as problem details (RFC 9457), with the path of each invalid field.

    {"type": "urn:problem-type:portal:invalid-fields", "title": "Some fields have to be mended", "status": 422,
     "detail": "…", "instance": "/api/v1/…", "errors": [{"path": "spec.roles.worker.count", "message": "…"}]}

`type` is for programs and never changes its meaning; `detail` is a sentence for people. Paths are those of the sent
manifest or names of query parameters; `see` beside a message is the page on which to request what is missing. 400 means
that the body cannot be parsed, 422 that fields of it are invalid. Forbidden and absent objects give the same 404. An
unexpected exception becomes a 500 that reveals nothing but an id; the log has the details under that id.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

import pydantic
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import PermissionDenied
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from rest_framework import exceptions

from portal.errors import Conflict, FieldError, Invalid
from portal.manifests import mistakes

log = logging.getLogger(__name__)

MAX_ERRORS = 100
MAX_PATH = 200

TITLES = {
    "bad-request": "The request cannot be understood",
    "malformed-body": "The body cannot be read",
    "not-authenticated": "Please sign in",
    "token-invalid": "This token is not valid",
    "token-expired": "This token has expired",
    "forbidden": "You may not do this",
    "password-to-choose": "Choose a password of your own first",
    "not-found": "There is nothing here for you",
    "method-not-allowed": "This cannot be done with this address",
    "not-acceptable": "The answer cannot be given in the format that you accept",
    "conflict": "Not possible in the present state",
    "body-too-large": "The body is too large",
    "length-required": "The body has to say how long it is",
    "unsupported-media-type": "The body has to be JSON",
    "invalid-fields": "Some fields have to be mended",
    "throttled": "Too many requests",
    "internal-error": "Something went wrong on our side",
    "unavailable": "Not available at the moment",
}
# Codes of Django REST framework that have another name here.
CODES = {
    "error": "internal-error",
    "parse_error": "malformed-body",
    "authentication_failed": "token-invalid",
    "permission_denied": "forbidden",
}


class TokenExpired(exceptions.AuthenticationFailed):
    default_code = "token-expired"


CHOOSE_ANOTHER = (
    "Your password was made by an administrator. Sign in with it in a browser and choose one of your own; before, nothing else "
    "is open to you."
)


class PasswordToChoose(exceptions.PermissionDenied):
    default_code = "password-to-choose"
    default_detail = CHOOSE_ANOTHER


class TooLarge(exceptions.APIException):
    status_code = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    default_code = "body-too-large"


class Unavailable(exceptions.APIException):
    """A part of the portal does not answer; nothing was changed. `wait` is the number of seconds before a retry."""

    status_code = HTTPStatus.SERVICE_UNAVAILABLE
    default_code = "unavailable"
    wait = 5


def problem_details(exc: Exception, context: Mapping[str, Any]) -> HttpResponse:
    """The response for any exception raised while an API request was handled."""
    path: str = context["request"].path
    match exc:
        case Invalid():
            return _invalid(path, exc.errors)
        case pydantic.ValidationError():
            return _invalid(path, mistakes(exc))
        case Conflict():
            return problem(path, HTTPStatus.CONFLICT, "conflict", str(exc))
        case Http404():
            return problem(path, HTTPStatus.NOT_FOUND, "not-found", str(exc) or "There is nothing at this address.")
        case PermissionDenied():
            return problem(path, HTTPStatus.FORBIDDEN, "forbidden", str(exc) or "You may not do this.")
        case exceptions.APIException():
            return _framework(path, exc)
        case OperationalError() | InterfaceError():
            log.error("The database does not answer: %s", exc)
            return _framework(path, Unavailable("The database does not answer; try again in a few seconds."))
    number = context["request"].error_id  # set by RequestIdMiddleware
    log.error("Internal error %s: %s %s", number, context["request"].method, path, exc_info=exc)
    sentence = f"This is a mistake of the portal, not yours. Please tell an administrator this number: {number}."
    return problem(path, HTTPStatus.INTERNAL_SERVER_ERROR, "internal-error", sentence, id=number)


def problem(
    path: str, status: int, code: str, detail: str, *, headers: Mapping[str, str] | None = None, **members: Any
) -> HttpResponse:
    """A problem response; `code` is the last part of its type, and `members` are added to the standard ones."""
    body = {
        "type": f"urn:problem-type:portal:{code}",
        "title": TITLES.get(code) or HTTPStatus(status).phrase,
        "status": int(status),
        "detail": detail,
        "instance": path,
        **members,
    }
    return JsonResponse(body, status=status, content_type="application/problem+json", headers=dict(headers or {}))


@login_not_required
@csrf_exempt
def unknown_address(request: HttpRequest) -> HttpResponse:
    """The catch-all of /api/ for unknown URLs."""
    hint = " Addresses have no '/' at their end." if request.path.endswith("/") else ""
    return problem(request.path, HTTPStatus.NOT_FOUND, "not-found", f"The API has no such address.{hint}")


def _invalid(path: str, errors: Iterable[FieldError]) -> HttpResponse:
    shown = [
        {"path": ".".join(error.path)[:MAX_PATH], "message": error.message}
        | ({"see": f"{settings.PORTAL_ORIGIN}{error.see}"} if error.see else {})
        for error in errors
    ]
    first = f"{shown[0]['path']}: {shown[0]['message']}" if shown[0]["path"] else shown[0]["message"]
    detail = first if len(shown) == 1 else f"{len(shown)} fields have to be mended; the first is {first}"
    return problem(path, HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-fields", detail, errors=shown[:MAX_ERRORS])


def _framework(path: str, exc: exceptions.APIException) -> HttpResponse:
    code = str(exc.get_codes()) if isinstance(exc.detail, str) else "bad-request"
    code = CODES.get(code, code.replace("_", "-"))
    detail = str(exc.detail)
    headers = {}
    if exc.status_code == HTTPStatus.UNAUTHORIZED:
        # RFC 6750, section 3: no error code if no token was sent.
        headers["WWW-Authenticate"] = 'Bearer realm="portal"'
        if code == "not-authenticated":
            detail = "Send “Authorization: Bearer TOKEN” with a token from your profile page, or sign in."
        else:
            headers["WWW-Authenticate"] += ', error="invalid_token"'
    if wait := getattr(exc, "wait", None):
        headers["Retry-After"] = str(int(wait))
    return problem(path, exc.status_code, code, detail, headers=headers)
