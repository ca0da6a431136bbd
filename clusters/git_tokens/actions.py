"""Git tokens of an appcode: credentials for reading from a Git server, one per host.

They are stored encrypted, sent to that host only, and never shown. Only the code fetcher gets them, tasks never do.
"""

from __future__ import annotations

from typing import Annotated

from django.db import transaction
from django.db.models import QuerySet
from django.http import Http404
from pydantic import AfterValidator, Field, StringConstraints

from clusters.git_tokens.models import GitToken
from clusters.manifest.code import HOST
from portal.access import OPERATE, VIEW, Capability, appcode_for
from portal.errors import Invalid
from portal.events import record
from portal.manifests import Strict
from portal.models import Appcode, User

MOST = 50


def _name(value: str) -> str:
    if ":" in value or not value.isascii() or not value.isprintable():
        raise ValueError(
            "Use ASCII without ':'. Where the server asks for a token only, any name will do, for example git."
        )
    return value


def _token(value: str) -> str:
    if not value.isascii() or not value.isprintable() or " " in value:
        raise ValueError("A token has no spaces and no other characters than ASCII.")
    return value


class GitTokenSpec(Strict):
    """A user name and a token or password, as a Git server accepts them over HTTPS."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=100), AfterValidator(_name)] = Field(
        default="git", examples=["oauth2"], description="GitLab takes oauth2, GitHub and Gitea any name with a token."
    )
    token: Annotated[str, StringConstraints(min_length=1, max_length=1000), AfterValidator(_token)] = Field(
        description="Never shown again."
    )


def tokens_for(user: User, appcode: str, capability: Capability = VIEW) -> QuerySet[GitToken]:
    """The tokens of one appcode. Raises Http404 or PermissionDenied."""
    found = appcode_for(user, appcode, capability)
    return GitToken.objects.filter(appcode=found).select_related("appcode", "created_by")


@transaction.atomic
def save_token(appcode: Appcode, host: str, spec: GitTokenSpec, *, acting_user: User) -> GitToken:
    """Saves the token that later runs fetch with. The caller has checked that the user may operate. Raises Invalid."""
    # Stored in the form that `clusters.manifest.code.host_of` looks up.
    host = host.removesuffix(":443")
    if not HOST.fullmatch(host):
        message = "Write the server as in the address of a repository: git.example.com, or git.example.com:8443."
        raise Invalid.at("host", message=message)
    Appcode.objects.select_for_update(of=("self",), no_key=True).get(pk=appcode.pk)
    rows = GitToken.objects.filter(appcode=appcode)
    if not rows.filter(host=host).exists() and rows.count() >= MOST:
        raise Invalid.at("host", message=f"An appcode has tokens for at most {MOST} servers; remove one.")
    values = {"name": spec.name, "token": spec.token, "created_by": acting_user}
    made, _ = GitToken.objects.update_or_create(appcode=appcode, host=host, defaults=values)
    _record("git.token_saved", made, acting_user, "Saved.")
    return made


@transaction.atomic
def remove_token(user: User, appcode: str, host: str) -> None:
    """Raises Http404 or PermissionDenied."""
    found = tokens_for(user, appcode, OPERATE).select_for_update(of=("self",)).filter(host=host).first()
    if found is None:
        raise Http404(f"{appcode} has no token for “{host}”.")
    _record("git.token_removed", found, user, "Removed.")
    found.delete()


def _record(verb: str, token: GitToken, actor: User, message: str) -> None:
    code = token.appcode.code
    record(verb, actor=actor, appcode=code, object=f"git token {code}/{token.host}", message=message)
