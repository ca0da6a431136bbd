"""Forwards each request to a replica of the service that it names, and the replica's answer to the caller.

admission.py picks the replica, upstream.py sends the request. Request bodies are read whole, so that a request no replica took
can be sent to another. Answers longer than a megabyte are streamed.
"""

from __future__ import annotations

import asyncio
import hashlib
import html
import json
import logging
import time
from dataclasses import dataclass

from aiohttp import web
from multidict import CIMultiDict

from clusters.router import http1
from clusters.router.access_log import AccessLog, Said
from clusters.router.admission import LONGEST_WAIT, Gone, Hall, NoPlace, Place
from clusters.router.counters import Tally
from clusters.router.database_feed import Link
from clusters.router.limits import Account
from clusters.router.table import Service, Token
from clusters.router.upstream import Broken, Connection, NotTaken, Pool

log = logging.getLogger(__name__)
MB = 10**6
# The limit of the portal's own model server.
MAX_BODY = 16 * MB
# Bytes. Longer answers are streamed; shorter ones are read whole before the caller gets the first byte.
WHOLE = MB
MAX_COPIES = 32
BODY_PIECE, BODY_SECONDS = 20.0, 120.0
# NGINX's status in access logs for a caller that disconnected.
LEFT = 499
# The header in which our model server reports the number of rows that it answered.
ROWS = b"x-portal-rows"
# Readiness and liveness checks.
RESERVED, HEALTH, ALIVE = "/.portal/", "/.portal/health", "/.portal/alive"
NOTHING_HERE = "There is nothing here that you may open."
NO_SUCH_PAGE = "There is nothing at this address."
WHO_ASKS = "This is a service of the portal: send one of its tokens as “Authorization: Bearer gps_…”."
TOO_LARGE = f"A request has at most {MAX_BODY / MB:.0f} MB."
TOO_SLOW = "The request did not come in time."
CONFUSING = "This request can be read in more than one way."
NOT_KNOWN = "It is not known just now which services there are. Try again."
STOPPED = "This service is stopped."
TOO_MANY = "Too many requests wait for this service. Try again."
NOBODY = "No replica of this service could take the request in time. Try again."
BROKE = "The replica that had the request did not answer it: its connection broke. Nobody knows whether it did what was asked."
TOO_LONG = "The replica did not answer within {} s."


class Refusal(Exception):
    """An error answer of the router itself, in the form of both protocols: {"error": sentence}."""

    def __init__(self, status: int, sentence: str, *, after: float | None = None, **headers: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if after is not None:
            self.headers["Retry-After"] = str(max(1, -int(-after // 1)))

    def response(self) -> web.Response:
        text = json.dumps({"error": self.sentence}, ensure_ascii=False)
        return _own(web.Response(text=text, status=self.status, headers=self.headers, content_type="application/json"))


@dataclass(frozen=True)
class Where:
    """Domain and ports of services, from the settings."""

    domain: str
    port: str
    usual_port: str

    def label(self, host: str) -> str:
        """Returns the service label in a Host header, or "" if it names no service. Callers inside may omit the port."""
        name, _, port = host.lower().partition(":")
        head, dot, domain = name.partition(".")
        return head if dot and domain == self.domain and port in ("", self.port, self.usual_port) else ""


class Router:
    def __init__(self, where: Where, hall: Hall, tally: Tally, link: Link, access_log: AccessLog) -> None:
        self._where, self._hall, self._tally, self._link, self._log = where, hall, tally, link, access_log
        self.pool = Pool()
        self.ending = False
        self.empty = asyncio.Event()
        self.empty.set()
        self._here = 0
        self._accounts: dict[int, Account] = {}
        self._copies: set[asyncio.Task[None]] = set()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.raw_path == ALIVE:
            return _own(web.json_response({"state": "alive"}))
        if request.raw_path == HEALTH:
            ready = self._link.known and not self.ending
            state = "ready" if ready else "ending" if self.ending else "not ready"
            return _own(web.json_response({"state": state}, status=200 if ready else 503))
        began, said, status = time.monotonic(), Said(), LEFT
        self._here += 1
        self.empty.clear()
        try:
            try:
                response = await self._judged(request, said)
            except Refusal as refusal:
                response = refusal.response()
            status = response.status
        finally:
            self._here -= 1
            if not self._here:
                self.empty.set()
            self._log.add(request, status, time.monotonic() - began, said)
        if self.ending:
            response.force_close()
        return response

    async def _judged(self, request: web.BaseRequest, said: Said) -> web.StreamResponse:
        """Authenticates the request, applies the token's limits and forwards it. Raises Refusal."""
        hosts = request.headers.getall("Host", [])
        if len(hosts) != 1 or not request.raw_path.startswith("/"):
            raise Refusal(400, CONFUSING)
        label = self._where.label(hosts[0])
        service = self._hall.table.by_label.get(label)
        if service is None:
            raise Refusal(404, NOTHING_HERE) if self._link.known or not label else Refusal(503, NOT_KNOWN, after=5)
        said.service = label
        if request.raw_path.startswith(RESERVED):
            raise Refusal(404, NO_SUCH_PAGE)
        token = _token(request, service)
        if token is None:
            raise Refusal(401, WHO_ASKS, WWW_Authenticate="Bearer")
        said.caller = token.name
        self._link.tokens.add(token.id)
        account = self._accounts.get(token.id)
        if account is None:
            account = self._accounts[token.id] = Account(time.monotonic())
        over = account.enter(token.per_second, token.at_once, time.monotonic(), self._hall.routers)
        if over:
            raise Refusal(429, over.sentence, after=over.after)
        try:
            if not service.running:
                raise Refusal(503, STOPPED, after=60)
            body = await _body(request)
            self._hall.come(service.id, 1)
            try:
                return await self._led(request, service, token, body, said)
            finally:
                self._hall.come(service.id, -1)
        finally:
            account.leave()

    async def _led(
        self, request: web.BaseRequest, service: Service, token: Token, body: bytes, said: Said
    ) -> web.StreamResponse:
        """Returns the answer of the first replica that takes the request."""
        headers = http1.onward(request.raw_headers, http1.OURS_OF_REQUESTS)
        headers.append((b"X-Portal-Caller", token.name.encode("ascii", "replace")))
        parts = [http1.request(request.method, request.raw_path, headers, len(body)), *([body] if body else [])]
        until = asyncio.get_running_loop().time() + LONGEST_WAIT
        if not service.live and _is_browser(request):
            # A browser gets a page that refreshes itself, instead of waiting in the queue.
            self._hall.call(service.id)
            return _starting(service)
        was_refused = False
        while True:
            try:
                place = await self._hall.place(service.id, until, again=was_refused)
            except NoPlace as error:
                raise Refusal(503, TOO_MANY if error.full else NOBODY, after=5) from None
            except Gone:
                raise Refusal(503, STOPPED, after=60) from None
            try:
                response = await self._asked(request, service, place, parts, said)
            except NotTaken:
                self._hall.leave_out(place)
                was_refused = True
                continue
            finally:
                self._hall.leave(place)
            self._copy(place, request.method, parts)
            return response

    async def _asked(
        self, request: web.BaseRequest, service: Service, place: Place, parts: list[bytes], said: Said
    ) -> web.StreamResponse:
        """Sends the request to one replica and returns its answer. Raises Refusal, and NotTaken if it cannot have begun."""
        began, passing = time.monotonic(), _Passing(sent=sum(map(len, parts)))
        said.replica = place.replica.id
        try:
            async with asyncio.timeout(service.request_seconds):
                connection = await self.pool.ask(place.replica, request.method, parts)
                try:
                    return await _passed_on(request, connection, place, passing)
                finally:
                    self.pool.done(place.replica.address, connection)
        except NotTaken:
            passing.counts = False
            raise
        except (asyncio.CancelledError, ConnectionError):
            passing.left = True  # the caller disconnected, which is not the replica's fault
            raise
        except TimeoutError:
            passing.status = 0
            raise _late(request, passing, Refusal(504, TOO_LONG.format(service.request_seconds))) from None
        except Broken as error:
            passing.status = 0
            log.warning("replica %s at %s: %s", place.replica.id, place.replica.address, error)
            raise _late(request, passing, Refusal(502, BROKE)) from None
        finally:
            if passing.counts:
                self._note(place, passing, began)

    def _note(self, place: Place, passing: _Passing, began: float, *, mirrored: bool = False) -> None:
        now = time.monotonic()
        self._tally.note(
            place.service, place.revision.id, status=None if passing.left else passing.status,
            seconds=now - began, sent=passing.sent, received=passing.received, wall=time.time(), now=now, rows=passing.rows,
            mirrored=mirrored,
        )  # fmt: skip

    def _copy(self, answered: Place, method: str, parts: list[bytes]) -> None:
        """Mirrors an answered request to the shadow revision. Drops the copy if MAX_COPIES are under way."""
        if len(self._copies) >= MAX_COPIES or self.ending:
            return
        if place := self._hall.copy(answered.service, answered.revision):
            seconds = self._hall.table.by_id[answered.service].request_seconds
            task = asyncio.get_running_loop().create_task(self._copied(place, method, parts, seconds))
            self._copies.add(task)
            task.add_done_callback(self._copies.discard)

    async def _copied(self, place: Place, method: str, parts: list[bytes], seconds: int) -> None:
        began, passing = time.monotonic(), _Passing(sent=sum(map(len, parts)))
        try:
            async with asyncio.timeout(seconds):
                connection = await self.pool.ask(place.replica, method, parts)
                try:
                    while piece := await connection.more():
                        passing.received += len(piece)
                    passing.status, passing.rows = connection.answer.status, _rows(connection.answer)
                finally:
                    self.pool.done(place.replica.address, connection)
        except NotTaken:
            self._hall.leave_out(place)
        except (Broken, TimeoutError):
            pass
        finally:
            self._hall.leave(place)
            self._note(place, passing, began, mirrored=True)

    def sweep(self) -> None:
        """Drops idle connections and unused state. Called every second."""
        now = time.monotonic()
        self.pool.sweep(now)
        self._hall.sweep()
        self._accounts = {each: account for each, account in self._accounts.items() if not account.is_old(now)}

    async def end(self) -> None:
        for task in self._copies:
            task.cancel()
        await asyncio.gather(*self._copies, return_exceptions=True)
        self.pool.close()


@dataclass(slots=True)
class _Passing:
    """Progress and counters of one answer."""

    sent: int
    received: int = 0
    rows: int = 0
    status: int = 0
    begun: bool = False
    left: bool = False
    counts: bool = True


def _own(response: web.Response) -> web.Response:
    response.headers["Server"] = "gpu-cloud"
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


def _late(request: web.BaseRequest, passing: _Passing, refusal: Refusal) -> BaseException:
    """Returns the refusal. If part of the answer was sent, breaks the connection, so that the caller sees a truncated answer."""
    if not passing.begun:
        return refusal
    if request.transport:
        request.transport.abort()
    return ConnectionResetError("the answer broke in the middle")


def _token(request: web.BaseRequest, service: Service) -> Token | None:
    """Returns the service's token that the request carries, or None. Tokens of other services count as unknown."""
    values = request.headers.getall("Authorization", [])
    scheme, _, value = values[0].strip().partition(" ") if len(values) == 1 else ("", "", "")
    if scheme.lower() not in ("bearer", "token"):
        return None
    found = service.tokens.get(hashlib.sha256(value.strip().encode("utf-8", "surrogateescape")).hexdigest())
    return found if found and (found.until is None or time.time() < found.until) else None


async def _body(request: web.BaseRequest) -> bytes:
    """Reads the body. Raises Refusal if it is too large or too slow."""
    length = request.content_length
    if length is not None and length > MAX_BODY:
        raise Refusal(413, TOO_LARGE)
    if not request.can_read_body:
        return b""
    if request.content.is_eof():
        # Small bodies arrive with the head: read them without a timeout.
        return await request.content.readany()
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
    found, size, content = [], 0, request.content
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                async with asyncio.timeout(BODY_PIECE):
                    piece = await content.readany()
                if not piece:
                    break
                size += len(piece)
                if size > MAX_BODY:
                    raise Refusal(413, TOO_LARGE)
                found.append(piece)
    except TimeoutError:
        raise Refusal(408, TOO_SLOW, Connection="close") from None
    except web.RequestPayloadError:
        raise Refusal(400, CONFUSING, Connection="close") from None
    return found[0] if len(found) == 1 else b"".join(found)


def _rows(answer: http1.Answer) -> int:
    """Returns the number of rows that a model server reports. The value is untrusted."""
    said = next((value for name, value in answer.headers if name.lower() == ROWS), b"")
    return int(said) if said.isdigit() and len(said) < 8 else 0


async def _passed_on(
    request: web.BaseRequest, connection: Connection, place: Place, passing: _Passing
) -> web.StreamResponse:
    """Forwards a replica's answer to the caller."""
    answer = connection.answer
    passing.status, passing.rows = answer.status, _rows(answer)
    headers: CIMultiDict[str] = CIMultiDict(
        (name.decode("latin-1"), value.decode("utf-8", "surrogateescape"))
        for name, value in http1.onward(answer.headers, http1.OURS_OF_ANSWERS)
    )
    headers["Server"] = "gpu-cloud"
    headers["X-Portal-Revision"] = str(place.revision.number)
    if answer.done or (answer.length is not None and answer.length <= WHOLE):
        pieces = []
        while piece := await connection.more():
            pieces.append(piece)
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        passing.received = len(body)
        if request.method == "HEAD" and answer.length is not None:
            headers["Content-Length"] = str(answer.length)
        return web.Response(status=answer.status, reason=answer.reason or None, headers=headers, body=body or None)
    response = web.StreamResponse(status=answer.status, reason=answer.reason or None, headers=headers)
    response.content_length = answer.length
    passing.begun = True
    await response.prepare(request)
    while piece := await connection.more():
        passing.received += len(piece)
        await response.write(piece)
    await response.write_eof()
    return response


def _is_browser(request: web.BaseRequest) -> bool:
    return request.method == "GET" and "text/html" in request.headers.get("Accept", "")


def _starting(service: Service) -> web.Response:
    text = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="2">'
        f"<title>Starting</title><h1>{html.escape(service.label)} is starting</h1>"
        "<p>Nobody asked it for a while, so it sleeps. This page asks again by itself until it answers.</p>"
    )
    response = _own(web.Response(text=text, status=503, content_type="text/html", headers={"Retry-After": "2"}))
    response.headers["Content-Security-Policy"] = "default-src 'none'; frame-ancestors 'none'"
    return response
