"""How people get in: allauth with local accounts, and OpenID Connect when it is configured.

Every page needs a signed-in person unless its view says otherwise (`login_not_required`), so forgetting it is safe.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.forms import ChangePasswordForm, LoginForm
from allauth.account.signals import password_changed, password_reset
from django import forms
from django.conf import settings
from django.contrib.auth.middleware import LoginRequiredMiddleware
from django.contrib.auth.views import redirect_to_login
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme

from portal import events
from portal.models import User

# A one-time password was seen by two people: it opens nothing but the choice of another.
ONE_TIME_PASSWORD_OPENS = frozenset({"account_change_password", "account_logout", "set_theme"})


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]
    """Closes self-registration unless PORTAL_OPEN_SIGNUP is set; keeps sign-in quiet (no "you have signed in" message)."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return bool(settings.PORTAL_OPEN_SIGNUP)

    def add_message(
        self, request: HttpRequest, level: int, message_template: str | None = None, *args: Any, **kwargs: Any
    ) -> None:
        if message_template and message_template.endswith(("/logged_in.txt", "/logged_out.txt")):
            return
        super().add_message(request, level, message_template, *args, **kwargs)

    def get_password_change_redirect_url(self, request: HttpRequest) -> str:
        return reverse("profile")


class SignInForm(LoginForm):  # type: ignore[misc]
    """allauth's form in our words; the page itself says what to do about a forgotten password."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["login"].label = "User name or e-mail"
        _plain(self, forgotten="password")


class NewPasswordForm(ChangePasswordForm):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, label in (
            ("oldpassword", "Present password"),
            ("password1", "New password"),
            ("password2", "New password, again"),
        ):
            self.fields[name].label = label
        _plain(self, forgotten="oldpassword")


def _plain(form: forms.Form, *, forgotten: str) -> None:
    """Labels are enough: no placeholders that repeat them, no link to a mail that may never be sent."""
    form.fields[forgotten].help_text = ""
    for field in form.fields.values():
        field.widget.attrs.pop("placeholder", None)


class SignInMiddleware(LoginRequiredMiddleware):
    """Sends people without a session to sign in and afterwards back to where they were.

    A fragment (htmx) gets 401 instead, so that a page with half a form in it is never replaced by the sign-in page. What was
    sent by POST cannot be repeated: they come back to the page with the form, and the browser fills in what they typed.
    """

    def process_view(
        self,
        request: HttpRequest,
        view_func: Callable[..., Any],
        view_args: tuple[Any, ...],
        view_kwargs: dict[str, Any],
    ) -> HttpResponseBase | None:
        must_change = request.user.is_authenticated and getattr(request.user, "must_change_password", False)
        name = request.resolver_match.url_name if request.resolver_match else None
        if must_change and name not in ONE_TIME_PASSWORD_OPENS:
            return HttpResponseRedirect(reverse("account_change_password"))
        return super().process_view(request, view_func, view_args, view_kwargs)

    def handle_no_permission(  # type: ignore[override]  # the stubs say that it only redirects
        self, request: HttpRequest, view_func: Callable[..., Any]
    ) -> HttpResponseBase:
        if request.headers.get("HX-Request") == "true":
            return HttpResponse("You have been signed out.", status=401, content_type="text/plain")
        back = request.get_full_path() if request.method in ("GET", "HEAD") else _referer_path(request)
        return redirect_to_login(back, settings.LOGIN_URL)


def _referer_path(request: HttpRequest) -> str:
    referer = request.headers.get("Referer", "")
    if not url_has_allowed_host_and_scheme(referer, {request.get_host()}):
        return "/"
    parts = urlsplit(referer)
    return parts.path + (f"?{parts.query}" if parts.query else "")


def connect() -> None:
    """Called once when the portal starts."""
    password_changed.connect(_password_chosen, dispatch_uid="portal.password_chosen")
    password_reset.connect(_password_chosen, dispatch_uid="portal.password_chosen_by_mail")


def _password_chosen(sender: object, request: HttpRequest, user: User, **kwargs: Any) -> None:
    """A password of one's own replaces the one-time password."""
    with transaction.atomic():
        user.must_change_password = False
        user.save(update_fields=["must_change_password"])
        events.record("person.password", actor=user, object=f"person {user.username}", message="chose a new password")
