"""Requests for quota, budget and last day, with the appcode itself or later, and the administrators' decisions.

The appcode keeps its terms until an administrator approves an open request; then all of them change in one transaction.
A decision names the revision that the administrator has read, so deciding a request that was changed or decided
meanwhile is a Conflict. Each step writes its Event and, through the outbox, its mail.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from portal import events, extension_points
from portal.access import MANAGE, require, require_administrator
from portal.errors import Conflict, FieldError, Invalid
from portal.lending import Share
from portal.manifests.appcode import MAX_REASON, Answered, Granted, Wanted
from portal.models import Appcode, Event, Membership, QuotaRequest, User
from portal.terms import MARKS, MAX_DAYS, Terms, day, due, followed, is_over, mark, when

State = QuotaRequest.State
STAYS = "What runs in it goes on; its data, volumes and invoices stay."


def new_terms(now: dt.datetime) -> Terms:
    """The default terms of a new appcode."""
    expires = day(now) + dt.timedelta(days=settings.APPCODE_DAYS) if settings.APPCODE_DAYS else None
    fresh = Appcode()
    return Terms(fresh.gpu_quota, fresh.storage_quota_gib, None, expires)


def terms_of(appcode: Appcode) -> Terms:
    """The terms in force; for an appcode that was never approved, the requested ones. One query."""
    asked = appcode.asked if appcode.state == Appcode.State.REQUESTED else None
    budget = asked.budget if asked else extension_points.budgets_of([appcode.pk]).get(appcode.pk)
    return Terms(appcode.gpu_quota, appcode.storage_quota_gib, budget, appcode.expires_on)


def proposed_terms(appcode: Appcode, now: dt.datetime) -> Terms:
    """A form's initial values: the latest request unless approved or withdrawn, otherwise the current terms, with a new
    last day if the old one is near."""
    if appcode.asked and appcode.asked.state != State.APPROVED and appcode.asked.state != State.WITHDRAWN:
        return appcode.asked.terms
    has = terms_of(appcode)
    return Terms(has.gpus, has.storage, has.budget, new_terms(now).expires) if appcode.expires_soon else has


@transaction.atomic
def ask(appcode: Appcode, wanted: Wanted, *, acting_user: User) -> QuotaRequest:
    """Requests other terms, or changes the request and sends it again. An identical open request is left as it is."""
    appcode = locked(appcode)
    require(acting_user, appcode, MANAGE)
    if appcode.state == Appcode.State.DISABLED:
        raise Conflict(f"{appcode.code} is disabled; ask an administrator.")
    has, now, before = terms_of(appcode), timezone.now(), appcode.asked
    asked = wanted.over(has)
    check_expiry(asked, has, now, ("expires",))
    if appcode.state == Appcode.State.ACTIVE:
        if asked == has:
            sentence = f"{appcode.code} has this already; ask for another number or another last day."
            raise Invalid.at("quota", message=sentence)
        # The request leaves an unchanged budget out: it may change elsewhere meanwhile.
        asked = replace(asked, budget=None if asked.budget == has.budget else asked.budget)
    if before and before.state == State.WAITING and (before.terms, before.reason) == (asked, wanted.reason):
        return before
    return send(appcode, asked, wanted.reason, now, acting_user)


def send(appcode: Appcode, asked: Terms, reason: str, now: dt.datetime, user: User) -> QuotaRequest:
    """Writes the request of a locked appcode. An appcode that was never approved also gets the requested terms as its own."""
    before, new = appcode.asked, appcode.state == Appcode.State.REQUESTED
    row, _ = QuotaRequest.objects.update_or_create(
        appcode=appcode,
        defaults={
            "state": State.WAITING, "revision": before.revision + 1 if before else 1, "gpus": asked.gpus,
            "storage_gib": asked.storage, "budget": asked.budget, "expires_on": asked.expires, "reason": reason,
            "asked_by": user, "asked_at": now, "decided_by": None, "decided_at": None, "note": "",
        },
    )  # fmt: skip
    appcode.request = row
    if new:
        _set(appcode, asked, now)
    words = row.words
    _record("requested", appcode, user, f"asked for {words}" + (f": {reason}" if reason else ""), asked)
    keeps = "Nothing can be started in it until then." if new else f"Until then it has {_has(appcode)}."
    why = f"Why: {reason}\n\n" if reason else ""
    text = f"{user.username} asks for {words}.\n\n{why}A platform administrator decides. {keeps}"
    mail_owners(appcode, f"{row.revision} sent", f"Request for {appcode.code}", text)
    administrators = User.objects.filter(is_active=True, is_superuser=True).exclude(email="")
    if to := list(administrators.values_list("email", flat=True)):
        text = f"{user.username} asks for {words} for {appcode.code} ({appcode.org_node.path}).\n\n{why}It waits for a decision."
        mail_owners(appcode, f"{row.revision} to decide", f"Request for {appcode.code}", text, to, "admin/appcodes")
    return row


@transaction.atomic
def withdraw(appcode: Appcode, *, acting_user: User) -> QuotaRequest:
    """Withdraws an open request; it can be sent again."""
    appcode = locked(appcode)
    require(acting_user, appcode, MANAGE)
    row = appcode.asked
    if row is None or not row.is_open:
        raise Conflict(f"Nothing is asked for {appcode.code} now.")
    said = f"withdrew the request for {row.words}"
    return _decide(appcode, row, State.WITHDRAWN, "", acting_user, "withdrawn", said)


@transaction.atomic
def approve(appcode: Appcode, granted: Granted, *, acting_user: User) -> Appcode:
    """Grants quota, budget and last day as requested, or as `granted` overrides them, and makes a new appcode active. What it
    may borrow and its weight change only if `granted` says so."""
    require_administrator(acting_user)
    appcode = locked(appcode)
    row, now = _undecided(appcode, granted.revision), timezone.now()
    has, terms, new = terms_of(appcode), granted.over(row.terms), appcode.state == Appcode.State.REQUESTED
    check_expiry(terms, None, now, ("expires",))
    other = "" if terms == row.terms else f"; asked for were {row.words}"
    appcode.state = Appcode.State.ACTIVE
    lent, share = appcode.share, granted.share.over(appcode.share)
    give(appcode, terms, now, acting_user, share)
    other += f"; {share.words}" if share != lent else ""
    got = terms_of(appcode)
    same = got == replace(has, expires=got.expires) and share == lent
    verb = "renewed" if not new and same and _later(got, has) else "approved"
    _decide(appcode, row, State.APPROVED, "", acting_user, verb, f"{verb}: {got.words(settings.CURRENCY)}{other}", got)
    return appcode


def _later(terms: Terms, before: Terms) -> bool:
    return before.expires is not None and (terms.expires is None or terms.expires > before.expires)


@transaction.atomic
def refuse(appcode: Appcode, answer: Answered, *, acting_user: User) -> QuotaRequest:
    """Refuses a request with a reason for its owners, who may change it and send it again."""
    require_administrator(acting_user)
    appcode = locked(appcode)
    row, note = _undecided(appcode, answer.revision), note_of(answer.note)
    if not row.is_open:
        raise Conflict(f"The request for {appcode.code} is {row.state} already.")
    return _decide(appcode, row, State.REFUSED, note, acting_user, "refused", note)


@transaction.atomic
def request_changes(appcode: Appcode, answer: Answered, *, acting_user: User) -> QuotaRequest:
    """Returns a request to its owners with the changes to make. It stays open until they send it again or withdraw it."""
    require_administrator(acting_user)
    appcode = locked(appcode)
    row, note = _undecided(appcode, answer.revision), note_of(answer.note)
    if row.state != State.WAITING:
        raise Conflict(f"The request for {appcode.code} waits for its owners, who have not sent it again.")
    return _decide(appcode, row, State.CHANGES, note, acting_user, "changes-requested", note)


def tell_expiry(now: dt.datetime | None = None) -> int:
    """Announces expiries that are near or have come; returns how many. May be killed, repeated and run twice at once."""
    now = now or timezone.now()
    near = Appcode.objects.filter(state=Appcode.State.ACTIVE, expires_on__lte=day(now) + dt.timedelta(days=MARKS[0]))
    rows = near.exclude(expiry_told=0).values_list("pk", "expires_on", "expiry_told")
    return sum(_tell_expiry(pk, now) for pk, expires, told in list(rows) if due(expires, told, now) is not None)


@transaction.atomic
def _tell_expiry(pk: int, now: dt.datetime) -> bool:
    appcode = locked(Appcode(pk=pk))
    told, expires = due(appcode.expires_on, appcode.expiry_told, now), appcode.expires_on
    if told is None or expires is None or appcode.state != Appcode.State.ACTIVE:
        return False
    appcode.expiry_told = told
    appcode.save(update_fields=["expiry_told"])
    verb = "expiring" if told else "expired"
    said = f"{appcode.code} {when(expires, now)}"
    text = f"{said}; its last day {'is' if told else 'was'} {expires}."
    _record(verb, appcode, None, text, terms_of(appcode))
    then = "Afterwards nothing new starts in it." if told else "Nothing new starts in it."
    text += f"\n\n{then} {STAYS} Its owners can ask for its renewal:"
    mail_owners(appcode, f"{expires} {told}", said, text, path=f"appcodes/{appcode.code}/request")
    return True


def give(appcode: Appcode, terms: Terms, now: dt.datetime, user: User, share: Share | None = None) -> None:
    """Applies terms and a share (None: as it is) to a locked appcode, in the transaction of an administrator's decision."""
    if share is not None:
        appcode.gpu_borrow, appcode.weight = share.borrow, share.weight
    _set(appcode, terms, now)
    if terms.budget is not None:
        for grant in extension_points.grant_budget:
            grant(appcode, terms.budget, user)
    extension_points.tell_given(appcode.pk)


def _set(appcode: Appcode, terms: Terms, now: dt.datetime) -> None:
    appcode.gpu_quota, appcode.storage_quota_gib = terms.gpus, terms.storage
    if appcode.expires_on != terms.expires:
        appcode.expires_on = terms.expires
        # An end that is already near when it is set needs no notice.
        appcode.expiry_told = mark(terms.expires, now)
    appcode.save()


def check_expiry(terms: Terms, before: Terms | None, now: dt.datetime, path: tuple[str, ...]) -> None:
    """Runs `judge_expiry` and raises its errors as Invalid."""
    errors: list[FieldError] = []
    judge_expiry(terms, before, now, path, errors)
    if errors:
        raise Invalid(errors)


def judge_expiry(
    terms: Terms, before: Terms | None, now: dt.datetime, path: tuple[str, ...], errors: list[FieldError]
) -> None:
    """Adds an error at `path` if the last day is past or too late, unless it is unchanged."""
    if terms.expires is None or (before and terms.expires == before.expires):
        return
    latest = day(now) + dt.timedelta(days=MAX_DAYS)
    if is_over(terms.expires, now) or terms.expires > latest:
        errors.append(FieldError(path, f"Choose a day from {day(now)} to {latest}, or none for no end."))


def _undecided(appcode: Appcode, revision: int) -> QuotaRequest:
    """The request that an administrator may decide; a refused request for a new appcode can still be approved. Raises
    Conflict."""
    row = appcode.asked
    if appcode.state == Appcode.State.DISABLED:
        raise Conflict(f"{appcode.code} is disabled; enable it first.")
    if row is None:
        raise Conflict(f"Nothing is asked for {appcode.code}.")
    if row.revision != revision:
        raise Conflict(f"The request for {appcode.code} was changed meanwhile; read it again.")
    if not row.is_decidable:
        by = f" by {row.decided_by}" if row.decided_by else ""
        raise Conflict(f"The request for {appcode.code} is {row.state} already{by}.")
    return row


SAID = {
    State.APPROVED: "{code} is approved", State.REFUSED: "The request for {code} is refused",
    State.CHANGES: "Changes to the request for {code} are requested", State.WITHDRAWN: "The request for {code} is withdrawn",
}  # fmt: skip


def _decide(
    appcode: Appcode, row: QuotaRequest, state: State, note: str, user: User, verb: str, said: str,
    terms: Terms | None = None,
) -> QuotaRequest:  # fmt: skip
    row.state, row.note, row.decided_by, row.decided_at = state, note, user, timezone.now()
    row.save()
    _record(verb, appcode, user, said, terms or row.terms)
    subject = SAID[state].format(code=appcode.code)
    subject = f"{appcode.code} is renewed" if verb == "renewed" else subject
    text, path = f"{subject} by {user.username}.", f"appcodes/{appcode.code}"
    if state == State.APPROVED:
        text += f"\n\nIt has {_has(appcode)} now."
    elif state == State.WITHDRAWN:
        text += "\n\nIt can be sent again."
    else:
        text += f"\n\n{note}\n\nIts owners can change it and send it again:"
        path += "/change" if appcode.state == Appcode.State.REQUESTED else "/request"
    mail_owners(appcode, f"{row.revision} {state}", subject, text, path=path)
    return row


def give_alone(
    appcode: Appcode, has: Terms, terms: Terms, event: Event, now: dt.datetime, user: User, share: Share | None = None
) -> None:
    """Applies an administrator's change that no request asked for. An open request adopts the changed terms where it
    requested no change; if it asks for nothing else, it counts as approved."""
    give(appcode, terms, now, user, share)
    row = appcode.asked
    if row and row.is_open:
        asked = followed(row.terms, has, terms)
        row.gpus, row.storage_gib, row.expires_on, row.revision = (
            asked.gpus,
            asked.storage,
            asked.expires,
            row.revision + 1,
        )
        if asked in (terms, replace(terms, budget=None)):
            row.state, row.note, row.decided_by, row.decided_at = State.APPROVED, "", user, now
        row.save()
    text = f"{user.username} changed what {appcode.code} may use. It has {_has(appcode)} now."
    mail_owners(appcode, f"changed {event.pk}", f"{appcode.code} may use something else", text)


def _has(appcode: Appcode) -> str:
    words, share = terms_of(appcode).words(settings.CURRENCY), appcode.share
    return words if share == Share() else f"{words}; it {share.words}"


def _record(verb: str, appcode: Appcode, user: User | None, said: str, terms: Terms) -> None:
    budget = None if terms.budget is None else f"{terms.budget:.2f}"
    events.record(
        f"appcode.{verb}", actor=user, object=f"appcode {appcode.code}", appcode=appcode.code, message=said,
        gpus=terms.gpus, storage=terms.storage, budget=budget, expires=terms.expires and str(terms.expires),
        borrow=appcode.gpu_borrow, weight=appcode.weight,
    )  # fmt: skip


def mail_owners(
    appcode: Appcode, key: str, subject: str, text: str, to: list[str] | None = None, path: str = ""
) -> None:
    """Queues mail to the notification addresses and the owners, or to `to`; once for each `key`. `path` is the linked page."""
    if to is None:
        owners = appcode.memberships.filter(role=Membership.Role.OWNER, user__is_active=True)
        to = [*appcode.emails, *owners.exclude(user__email="").values_list("user__email", flat=True)]
    link = f"{settings.PORTAL_ORIGIN}/{path or f'appcodes/{appcode.code}'}"
    for tell in extension_points.mail:
        tell(f"appcode {appcode.pk} {key}", appcode.pk, subject, f"{text}\n\n{link}\n", list(dict.fromkeys(to)))


def note_of(note: str) -> str:
    note = " ".join(note.split())
    if not 1 <= len(note) <= MAX_REASON:
        raise Invalid.at("note", message=f"Say why in 1 to {MAX_REASON} characters; the owners will read it.")
    return note


def locked(appcode: Appcode) -> Appcode:
    """The current row, locked until the transaction ends, so that owners are counted before they change. NO KEY UPDATE:
    inserts of metering that reference the appcode need not wait."""
    return Appcode.objects.select_for_update(of=("self",), no_key=True).select_related("org_node").get(pk=appcode.pk)
