"""Bearer tokens for REST: knox keeps only a hash and an expiry; an expired token is told apart from a wrong one."""

from __future__ import annotations

from django.utils import timezone
from knox.auth import TokenAuthentication
from rest_framework.exceptions import AuthenticationFailed

from portal.models import ApiToken


class BearerAuthentication(TokenAuthentication):  # type: ignore[misc]
    """`Authorization: Bearer TOKEN`. Expired tokens stay listed on the profile page until their owner removes them."""

    def _cleanup_token(self, auth_token: ApiToken) -> bool:
        if auth_token.expiry is not None and auth_token.expiry < timezone.now():
            raise AuthenticationFailed(f"This token expired on {auth_token.expiry:%Y-%m-%d %H:%M} UTC; make a new one on your profile page.")
        return False
