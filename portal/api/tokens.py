"""Bearer tokens for REST: only a hash and an expiry are stored, and an expired token gets its own error."""

from __future__ import annotations

import datetime as dt

from django.db.models import Q
from django.utils import timezone
from knox.auth import TokenAuthentication
from knox.crypto import hash_token
from rest_framework.exceptions import AuthenticationFailed

from portal.api.problems import PasswordToChoose, TokenExpired
from portal.models import ApiToken, User

# Precision of "last used" on the profile page, so that a busy script does not write a row at every request.
LAST_USED = dt.timedelta(minutes=1)


class BearerAuthentication(TokenAuthentication):  # type: ignore[misc]
    """`Authorization: Bearer TOKEN`. Expired tokens stay listed on the profile page until their owner removes them. The
    hash is the row's key, so one lookup decides; only a client with the whole token learns that it has expired. While
    its owner has a one-time password, which two people know, a token is as limited as the pages are."""

    def authenticate_credentials(self, token: bytes) -> tuple[User, ApiToken]:
        try:
            digest = hash_token(token.decode("ascii"))
        except UnicodeDecodeError as error:
            raise AuthenticationFailed("This is not one of our tokens.") from error
        found = ApiToken.objects.select_related("user").filter(digest=digest).first()
        if found is None or not found.user.is_active:
            raise AuthenticationFailed("This token is unknown: it was revoked, or is not complete.")
        now = timezone.now()
        if found.expiry is not None and found.expiry <= now:
            raise TokenExpired(
                f"This token expired on {found.expiry:%Y-%m-%d at %H:%M} UTC; make a new one on your profile page."
            )
        if found.user.must_change_password:
            raise PasswordToChoose
        if found.last_used_at is None or found.last_used_at < now - LAST_USED:
            stale = Q(last_used_at=None) | Q(last_used_at__lt=now - LAST_USED)
            ApiToken.objects.filter(stale, pk=found.pk).update(last_used_at=now)
        return found.user, found
