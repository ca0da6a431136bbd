"""How people get in: allauth with local accounts, and OpenID Connect when it is configured."""

from allauth.account.adapter import DefaultAccountAdapter
from django.conf import settings
from django.http import HttpRequest


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]
    """Closes self-registration unless PORTAL_OPEN_SIGNUP is set."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return bool(settings.PORTAL_OPEN_SIGNUP)
