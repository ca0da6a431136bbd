"""Sign-in: allauth with local accounts, and with OpenID Connect if configured.

Every page requires a signed-in user unless its view opts out (`login_not_required`), so forgetting it is safe.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any, ClassVar, cast
from urllib.parse import quote

import requests
from allauth.account import views
from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.forms import ChangePasswordForm, LoginForm, ResetPasswordKeyForm
from allauth.account.signals import password_changed, password_reset
from allauth.account.utils import filter_users_by_email, filter_users_by_username
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.providers.openid_connect import views as openid_views
from django import forms
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.middleware import LoginRequiredMiddleware
from django.contrib.auth.views import redirect_to_login
from django.core import signing
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse

from portal import events
from portal.actions import tokens as tokens_actions
from portal.api.problems import CHOOSE_ANOTHER, problem
from portal.models import User
from portal.pages import layout

log = logging.getLogger(__name__)

WRONG = "The user name, the e-mail or the password is wrong."
# Seconds for which a browser is remembered after a sign-in.
BROWSER_MEMORY, BROWSER_SALT = 365 * 24 * 3600, "portal.browser"
LABELS = {"oldpassword": "Current password", "password1": "New password", "password2": "New password, again"}
# Two people have seen a one-time password, so it allows nothing but choosing a new one.
ONE_TIME_PASSWORD_OPENS = frozenset({"account_change_password", "account_logout", "set_theme"})


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]
    """Closes self-registration unless PORTAL_OPEN_SIGNUP is set, and shows no "you have signed in" messages.

    Wrong passwords are limited per account, whichever of its names is typed, and per address. A browser that has signed
    in before has its own limit, so an attacker cannot lock people out of the browsers that they use (OWASP: device
    cookie). Links in mails begin with PORTAL_ORIGIN, whatever Host the request had.
    """

    error_messages: ClassVar = {
        **DefaultAccountAdapter.error_messages,
        # Worded like the field, and the same whichever of the two is wrong.
        **dict.fromkeys(("username_password_mismatch", "email_password_mismatch", "invalid_login"), WRONG),
    }

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return bool(settings.PORTAL_OPEN_SIGNUP)

    def add_message(
        self, request: HttpRequest, level: int, message_template: str | None = None, *args: Any, **kwargs: Any
    ) -> None:
        if message_template and message_template.endswith(("/logged_in.txt", "/logged_out.txt")):
            return
        super().add_message(request, level, message_template, *args, **kwargs)

    def _get_login_attempts_cache_key(self, request: HttpRequest, **credentials: Any) -> str:
        """allauth's key contains the Host, so each name of the portal would allow further attempts."""
        login: str = credentials.get("email") or credentials["username"]
        found = [*filter_users_by_email(login), *filter_users_by_username(login)]
        if not found:
            return f"nobody {login.lower()}"
        account, browser = f"account {found[0].pk}", self._browser(request)
        return f"{account} browser {browser['id']}" if browser.get("user") == found[0].pk else account

    def _browser(self, request: HttpRequest) -> dict[str, Any]:
        """The last user who signed in with this browser (`user`) and its id from then (`id`); {} for a new browser."""
        text = request.COOKIES.get(settings.BROWSER_COOKIE_NAME, "")
        try:
            found: dict[str, Any] = signing.loads(text, salt=BROWSER_SALT, max_age=BROWSER_MEMORY)
        except signing.BadSignature:
            return {}
        return found

    def post_login(self, request: HttpRequest, user: User, **options: Any) -> HttpResponse:
        response: HttpResponse = super().post_login(request, user, **options)
        self._note("person.signed-in", request, user, actor=user)
        response.set_cookie(
            settings.BROWSER_COOKIE_NAME,
            signing.dumps({"user": user.pk, "id": secrets.token_hex(8)}, salt=BROWSER_SALT),
            max_age=BROWSER_MEMORY,
            secure=settings.SESSION_COOKIE_SECURE,
            httponly=True,
            samesite="Lax",
        )
        return response

    def authentication_failed(self, request: HttpRequest, **credentials: Any) -> None:
        """What was typed is not kept: it may be a password. The limits of attempts bound how many lines this makes."""
        login: str = credentials.get("email") or credentials.get("username") or ""
        found = [*filter_users_by_email(login), *filter_users_by_username(login)]
        self._note("person.sign-in-failed", request, found[0] if found else None, actor=None)

    def _note(self, verb: str, request: HttpRequest, whose: User | None, *, actor: User | None) -> None:
        address = super().get_client_ip(request)
        object_ = f"person {whose.username}" if whose else ""
        said = "signed in" if actor else "could not sign in" if whose else "somebody unknown tried to sign in"
        message = f"{said} from {address}"
        with transaction.atomic():
            events.record(verb, actor=actor, object=object_, message=message, address=address)

    def get_client_ip(self, request: HttpRequest) -> str:
        """All users of this machine share its loopback address: limiting by it would let ten wrong passwords lock
        everybody out."""
        address: str = super().get_client_ip(request)
        return f"{address}-{secrets.token_hex(8)}" if ip_address(address).is_loopback else address

    def get_reset_password_from_key_url(self, key: str) -> str:
        path = reverse("account_reset_password_from_key", kwargs={"uidb36": "UID", "key": "KEY"})
        return f"{settings.PORTAL_ORIGIN}{path.replace('UID-KEY', quote(key))}"

    def send_password_reset_mail(self, user: User, email: str, context: dict[str, Any]) -> None:
        """Users of the identity provider have no password here and get none by mail."""
        if user.has_usable_password():
            super().send_password_reset_mail(user, email, context)

    def get_password_change_redirect_url(self, request: HttpRequest) -> str:
        return reverse("profile")


class ProviderAdapter(DefaultSocialAccountAdapter):  # type: ignore[misc]
    """The identity provider decides who may sign in; there is no page of connected accounts to return to."""

    def is_open_for_signup(self, request: HttpRequest, sociallogin: object) -> bool:
        return True

    def on_authentication_error(
        self, request: HttpRequest, provider: object, error: str | None = None, exception: Exception | None = None,
        extra_context: object = None,
    ) -> None:  # fmt: skip
        log.warning("Nobody was signed in by the identity provider: %s", exception or error)

    def get_connect_redirect_url(self, request: HttpRequest, socialaccount: object) -> str:
        return reverse("profile")


class SignInForm(LoginForm):  # type: ignore[misc]
    """allauth's form with our labels; the page itself explains what to do about a forgotten password."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["login"].label = "User name or e-mail"
        self.fields["login"].widget.attrs |= {"autofocus": True, "autocomplete": "username", "autocapitalize": "none"}
        _plain(self)


class _AnotherPassword(forms.Form):
    """The base of forms for a new password: it must differ from the old one, and may end the user's API tokens. The box
    is ticked by default, because a user whose password is known to others also wants tokens made with it to end. It is
    shown only if there are tokens."""

    user: User

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if count := self.user.auth_token_set.count() if self.user else 0:
            self.fields["end_tokens"] = forms.BooleanField(
                label=f"End my {count} API tokens, too" if count > 1 else "End my API token, too",
                help_text="What uses a token will be refused. Keep tokens only if nobody can have seen the old password.",
                initial=True,
                required=False,
            )
        for name, label in LABELS.items():
            if name in self.fields:
                self.fields[name].label = label
        _plain(self)

    def clean_password1(self) -> str:
        chosen: str = self.cleaned_data["password1"]
        if self.user.check_password(chosen):
            raise forms.ValidationError("This is your current password; choose another one.")
        return chosen

    @transaction.atomic
    def save(self) -> None:
        super().save()  # type: ignore[misc]  # of the form that this is put before
        if self.cleaned_data.get("end_tokens"):
            tokens_actions.end_tokens(self.user, acting_user=self.user)


class NewPasswordForm(_AnotherPassword, ChangePasswordForm):  # type: ignore[misc]
    """For a user who knows the current password."""


class ForgottenPasswordForm(_AnotherPassword, ResetPasswordKeyForm):  # type: ignore[misc]
    """For a user with a link from a mail."""


def _plain(form: forms.Form) -> None:
    """Removes what allauth adds: placeholders that repeat labels, and a link to a mail that may never be sent."""
    for name, field in form.fields.items():
        if name in ("password", "oldpassword"):
            field.help_text = ""
        field.widget.attrs.pop("placeholder", None)


def change_password(request: HttpRequest) -> HttpResponseBase:
    if request.user.is_authenticated and not request.user.has_usable_password():
        return render(request, "account/password_elsewhere.html")
    return cast("HttpResponseBase", views.password_change(request))


@login_not_required
def ask_for_new_password(request: HttpRequest) -> HttpResponseBase:
    """Sends a mail with a link. Without a mail server it refers to an administrator, because the link would be in the log."""
    if not layout.sends_mail():
        return render(request, "account/password_reset_closed.html")
    return cast("HttpResponseBase", views.password_reset(request))


@login_not_required
def go_to_provider(request: HttpRequest, provider_id: str) -> HttpResponseBase:
    """allauth fetches the provider's configuration first, but handles its failures only on the way back."""
    try:
        return cast("HttpResponseBase", openid_views.login(request, provider_id))
    except requests.RequestException as error:
        log.warning("The identity provider is out of reach: %s", error)
        return render(request, "socialaccount/authentication_error.html", status=503)


@login_not_required
def provider_knows_too_little(request: HttpRequest) -> HttpResponse:
    """Replaces allauth's form for typing an address that the provider left out or that another account has."""
    return render(request, "account/provider_conflict.html", status=409)


class SignInMiddleware(LoginRequiredMiddleware):
    """Sends users without a session to sign in, and back afterwards. A fragment (htmx) gets 401 instead, so that a
    half-filled form is never replaced by the sign-in page. A POST cannot be repeated: the user returns to the page with
    the form, and the browser restores the input."""

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
            if request.path.startswith("/api/"):
                return problem(request.path, 403, "password-to-choose", CHOOSE_ANOTHER)
            return HttpResponseRedirect(reverse("account_change_password"))
        return super().process_view(request, view_func, view_args, view_kwargs)

    def handle_no_permission(  # type: ignore[override]  # the stubs say that it only redirects
        self, request: HttpRequest, view_func: Callable[..., Any]
    ) -> HttpResponseBase:
        if request.headers.get("HX-Request") == "true":
            return HttpResponse("You have been signed out.", status=401, content_type="text/plain")
        back = request.get_full_path() if request.method in ("GET", "HEAD") else layout.came_from(request)
        return redirect_to_login(back, settings.LOGIN_URL)


def connect() -> None:
    """Connects the signals; called once at start."""
    password_changed.connect(_password_chosen, dispatch_uid="portal.password_chosen")
    password_reset.connect(_password_chosen, dispatch_uid="portal.password_chosen_by_mail")


def _password_chosen(sender: object, request: HttpRequest, user: User, **kwargs: Any) -> None:
    """The chosen password replaces the one-time password."""
    with transaction.atomic():
        user.must_change_password = False
        user.save(update_fields=["must_change_password"])
        events.record("person.password", actor=user, object=f"person {user.username}", message="chose a new password")
