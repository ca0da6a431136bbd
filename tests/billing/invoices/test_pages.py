"""Invoice and price pages, files, REST and mail: for the right people, with equal sums everywhere."""

import csv
import datetime as dt
import hashlib
import io
import json
import re
import threading
from decimal import Decimal
from email import message_from_bytes

import pytest
from aiosmtpd.controller import Controller
from django.core import mail as outbox
from django.db import connections
from django.test import Client
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st
from pypdf import PdfReader

from billing import mails, periods
from billing.invoices import access, closing, credit_notes
from billing.invoices.issuer import Terms
from billing.ledger import posting
from billing.models import Closing, Credit, Invoice, LedgerEntry, Mail, Price
from portal.models import Event
from portal.up.services import free_port
from tests.access.table import TOKEN
from tests.billing.dashboards.test_usage import LAST, MONTH, use

HOUR = 3600
EVERYBODY = ("anonymous", "alice", "bob", "victor", "mallory", "root")
SLUG = f"{MONTH.since:%Y-%m}"


def who(*answers: int) -> dict[str, int]:
    return dict(zip(EVERYBODY, answers, strict=True))


IN, OPS, ADMINISTRATORS = (
    who(302, 200, 200, 200, 200, 200), who(302, 200, 200, 200, 404, 200), who(302, 404, 404, 404, 404, 200),
)  # fmt: skip


@pytest.fixture
def closed(people, make_appcode):
    """OPS used 3 GPU-hours last month, has a correction of one hour of the month before, and a credit of 0.50."""
    Price.objects.create(sku="gpu", per_hour=Decimal("1.5"), valid_from=dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
    Credit.objects.create(
        appcode=people.ops,
        amount=Decimal("0.5"),
        reason="A night without power",
        valid_from=LAST.since,
        created_by="root",
    )
    type(people.ops).objects.filter(pk=people.ops.pk).update(name="Operations <b>运维</b>")
    use(people.flight, LAST.since, HOUR, cluster="wing")
    posting.post()
    closing.plan(timezone.now())
    closing.close(Closing.objects.get(month=LAST.since.date()), LAST.until + dt.timedelta(days=4))
    use(people.ops, LAST.since, HOUR, cluster="late")
    use(people.ops, MONTH.since, 2 * HOUR, cluster="edge", run="1")
    use(people.ops, MONTH.since, HOUR, cluster="edge", run="1", index=1)
    posting.post()
    closing.close(Closing.objects.get(month=MONTH.since.date()), timezone.now())
    return Invoice.objects.get(month=MONTH.since.date())


def sign_in(client: Client, user) -> Client:
    client.force_login(user)
    return client


def table(response) -> list[dict[str, str]]:
    assert response["Content-Type"].startswith("text/csv")
    return list(csv.DictReader(io.StringIO(response.content.decode())))


# tests/access covers every address; this adds file formats of invoices, odd queries and an open month.
PAGES = {
    "/invoices?month=2026-13&cursor=x": IN,
    f"/invoices/ops-demo/{SLUG}?format=pdf": OPS,
    f"/invoices/ops-demo/{SLUG}?format=csv": OPS,
    f"/invoices/ops-demo/{SLUG}?format=json": OPS,
    f"/invoices/ops-demo/{timezone.now():%Y-%m}": OPS,
    f"/invoices/ops-demo/{SLUG}/lines/1?format=csv": OPS,
    "/admin/prices?history=1&search=gpu": ADMINISTRATORS,
}
ACTIONS = (
    (f"/invoices/ops-demo/{SLUG}/notes", ("amount", "0.10"), ("reason", "sorry")),
    (f"/invoices/ops-demo/{SLUG}/mail",),
    (f"/admin/months/{SLUG}/close",),
    ("/admin/prices/discounts", ("sku", "*"), ("percent", "5")),
    ("/admin/prices/credits", ("appcode", "ops-demo"), ("amount", "5"), ("reason", "sorry")),
    ("/admin/prices/import", ("text", "sku,appcode,business_line,per_hour,valid_from\ncpu,,,1,2099-01-01\n")),
)


def test_every_form_of_an_invoice_opens_for_those_it_is_for(people, closed):
    for name in EVERYBODY:
        client = Client()
        if name != "anonymous":
            sign_in(client, getattr(people, name))
        found = {path: client.get(path).status_code for path in PAGES}
        assert found == {path: of[name] for path, of in PAGES.items()}, name


def test_what_administrators_do_is_told_of(client, people, closed):
    sign_in(client, people.root)
    before = Event.objects.count()
    for path, *typed in ACTIONS:
        assert client.post(path, dict(typed)).status_code == 302, path
    told = [
        ("invoice.credit-note", "root"), ("discount.added", "root"), ("credit.given", "root"), ("price.added", "root"),
        ("prices.imported", "root"),
    ]  # fmt: skip
    assert list(Event.objects.order_by("id").values_list("verb", "actor_name"))[before:] == told


def test_absent_and_forbidden_look_the_same(client, people, closed):
    sign_in(client, people.mallory)
    theirs, nothing = (client.get(f"/invoices/{code}/{SLUG}") for code in ("ops-demo", "xps-demo"))
    ids = [(theirs["X-Request-ID"], "ID"), (nothing["X-Request-ID"], "ID"), ("xps-demo", "CODE"), ("ops-demo", "CODE")]
    texts = [TOKEN.sub("", answer.content.decode()) for answer in (theirs, nothing)]
    for old, new in ids:
        texts = [text.replace(old, new) for text in texts]
    assert texts[0] == texts[1]
    assert "ops-demo" not in client.get("/invoices").content.decode()


def test_months_without_an_invoice_are_not_there(client, people, closed):
    sign_in(client, people.root)
    for month in ("2019-01", "2098-01", f"{periods.month_after(periods.month(timezone.now())).since:%Y-%m}"):
        assert client.get(f"/invoices/ops-demo/{month}").status_code == 404
    # OPS used nothing in this closed month.
    assert client.get(f"/invoices/ops-demo/{LAST.since:%Y-%m}").status_code == 404
    assert client.get(f"/invoices/ops-demo/{SLUG}/lines/99").status_code == 404
    for month in ("2026-00", "2026-1", "26-01"):
        assert client.get(f"/invoices/ops-demo/{month}").status_code == 404


def test_page_csv_pdf_and_rest_say_the_same(client, people, closed):
    sign_in(client, people.victor)
    page = client.get(f"/invoices/ops-demo/{SLUG}").content.decode()
    assert closed.number in page
    assert closed.sha256 in page
    assert "Corrections of earlier months" in page
    assert "<b>运维" not in page
    rows = table(client.get(f"/invoices/ops-demo/{SLUG}?format=csv"))
    assert [(row["used_month"], row["sku"], row["unit_seconds"], row["amount"]) for row in rows] == [
        (SLUG, "gpu", str(3 * HOUR), "4.50"), (f"{LAST.since:%Y-%m}", "gpu", str(HOUR), "1.50"),
        (SLUG, "credit: A night without power", "", "-0.50"),
    ]  # fmt: skip
    assert sum(Decimal(row["amount"]) for row in rows) == closed.total == Decimal("5.50")
    answer = client.get(f"/invoices/ops-demo/{SLUG}?format=pdf")
    assert answer["Content-Type"] == "application/pdf"
    assert answer.content == client.get(f"/invoices/ops-demo/{SLUG}?format=pdf").content
    paper = PdfReader(io.BytesIO(answer.content)).pages[0].extract_text()
    for words in (closed.number, "5.50 USD", "4.50", "Corrections of earlier months", closed.sha256, "Operations <b>"):
        assert words in paper
    document = client.get(f"/invoices/ops-demo/{SLUG}?format=json").content
    assert hashlib.sha256(document).hexdigest() == closed.sha256
    path = f"/api/v1/appcodes/ops-demo/invoices/{SLUG}"
    body = client.get(path).json()
    assert (body["state"], body["sha256"], body["toPay"]) == ("closed", closed.sha256, "5.50")
    assert body["document"] == json.loads(document)
    assert client.get(f"{path}/document").content == document
    assert client.get(f"{path}/pdf").content == answer.content
    assert table(client.get(f"{path}/csv")) == rows


def test_what_an_invoice_states_is_fixed_when_it_is_closed_and_everywhere_the_same(client, people, make_appcode):
    spec = {
        "issuer": "Example AI Ltd.\n1 Main Street", "taxNumber": "IE1", "tax": {"name": "VAT", "percent": "19"},
        "payment": "IBAN IE12", "dueDays": 30, "billTo": {"qunarcorp": "Qunar GmbH\n运维 <b>"},
    }  # fmt: skip
    sign_in(client, people.root)
    put = client.put("/api/v1/invoicing", {"spec": spec}, content_type="application/json")
    assert put.json()["spec"] == {**spec, "tax": {"name": "VAT", "percent": "19"}}
    Price.objects.create(sku="gpu", per_hour=Decimal("1.11"), valid_from=dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
    use(people.ops, MONTH.since, HOUR)
    posting.post()
    closing.plan(timezone.now())
    now = timezone.now()
    assert b"Qunar GmbH" in client.get(f"/invoices/ops-demo/{SLUG}").content, "what is open shows it, too"
    closing.close(Closing.objects.get(month=MONTH.since.date()), now)
    invoice = Invoice.objects.get()
    assert (invoice.total, invoice.tax, invoice.gross) == (Decimal("1.11"), Decimal("0.21"), Decimal("1.32"))
    client.post("/admin/invoicing", {"issuer": "Somebody else", "bill_to": "qunarcorp: Else; 2 Street"})
    assert closing.invoicing().bill_to == {"qunarcorp": "Else\n2 Street"}
    wrong = client.post("/admin/invoicing", {"tax_percent": "101", "bill_to": "nothing"})
    assert "has no business line before a colon" in wrong.content.decode()
    assert [problems for _, problems in closing.proof() if problems] == []
    credit_notes.issue(invoice, Decimal("0.11"), "sorry", acting_user=people.root)

    page = client.get(f"/invoices/ops-demo/{SLUG}").content.decode()
    paper = "\n".join(
        page.extract_text()
        for page in PdfReader(io.BytesIO(client.get(f"/invoices/ops-demo/{SLUG}?format=pdf").content)).pages
    )
    for text in (page, paper):
        for said in ("Example AI Ltd.", "IE1", "Qunar GmbH", "VAT 19 %", "IBAN IE12", "0.19", "1.19"):
            assert said in text, said
        assert f"{now.date() + dt.timedelta(days=30)}" in text
        assert "Somebody else" not in text
    assert "运维 <b>" not in page
    rest = client.get(f"/api/v1/appcodes/ops-demo/invoices/{SLUG}").json()
    assert (rest["document"]["total"], rest["document"]["gross"], rest["toPay"]) == ("1.11", "1.32", "1.19")
    assert hashlib.sha256(client.get(f"/invoices/ops-demo/{SLUG}?format=json").content).hexdigest() == invoice.sha256
    rows = table(client.get(f"/invoices/ops-demo/{SLUG}?format=csv"))
    assert sum(Decimal(row["amount"]) for row in rows) == Decimal("1.19")
    (row,) = table(client.get("/invoices?format=csv"))
    assert (row["tax"], row["credit_notes"], row["to_pay"]) == ("0.21", "0.13", "1.19")
    assert access.closed_months(type(people.ops).objects.all())[0][2] == Decimal("1.19")


@given(st.decimals(0, 100, places=2), st.lists(st.integers(1, 10**7), min_size=1, max_size=6))
def test_the_taxes_of_credit_notes_add_up_to_that_of_the_invoice(percent, cents):
    """However an invoice is taken back in parts, its tax is, to the cent."""
    terms, parts = Terms(tax_percent=percent), [Decimal(each).scaleb(-2) for each in cents]
    left, taken = sum(parts), Decimal(0)
    for part in parts:
        taken += terms.tax(left) - terms.tax(left - part)
        left -= part
    assert taken == terms.tax(sum(parts))


def test_a_line_leads_to_its_entries_and_they_add_up(client, people, closed):
    sign_in(client, people.bob)
    rows = table(client.get(f"/invoices/ops-demo/{SLUG}/lines/1?format=csv"))
    assert sum(int(row["unit_seconds"]) for row in rows) == 3 * HOUR
    assert sum(Decimal(row["cost"]) for row in rows) == Decimal("4.5")
    page = client.get(f"/invoices/ops-demo/{SLUG}/lines/1").content.decode()
    assert "do not add up" not in page
    assert "/billing/ops-demo/edge/1?" in page
    segment = re.search(r'href="(/billing/ops-demo/edge/1/\d+)"', page)[1]
    assert "What was seen" in client.get(segment).content.decode()
    late = table(client.get(f"/invoices/ops-demo/{SLUG}/lines/2?format=csv"))
    assert [row["cluster"] for row in late] == ["late"]
    body = client.get(f"/api/v1/appcodes/ops-demo/invoices/{SLUG}/lines/1/entries?limit=1").json()
    assert len(body["items"]) == 1
    assert client.get(body["next"]).json()["next"] is None


def test_an_open_invoice_is_shown_in_every_form(client, people, closed):
    sign_in(client, people.bob)
    use(people.ops, timezone.now() - dt.timedelta(seconds=2), None, cluster="live")
    month = f"{timezone.now():%Y-%m}"
    page = client.get(f"/invoices/ops-demo/{month}").content.decode()
    assert "What it would say if the month ended now" in page
    body = client.get(f"/api/v1/appcodes/ops-demo/invoices/{month}").json()
    assert (body["state"], body["sha256"], body["document"]["number"]) == ("open", None, "")
    assert client.get(f"/api/v1/appcodes/ops-demo/invoices/{month}/document").status_code == 404
    assert client.get(f"/invoices/ops-demo/{month}?format=json").status_code == 404
    pdf = client.get(f"/invoices/ops-demo/{month}?format=pdf").content
    assert "not closed yet" in PdfReader(io.BytesIO(pdf)).pages[0].extract_text()
    listed = client.get("/invoices").content.decode()
    assert f"Used in {timezone.now():%B %Y}, so far" in listed


def test_the_list_of_open_months_says_what_was_used_and_the_invoice_what_is_to_pay(client, people, closed):
    """Both show usage before credits under the same name, and neither calls it the amount due."""
    sign_in(client, people.bob)
    month = periods.month(timezone.now())
    Credit.objects.create(
        appcode=people.ops, amount=Decimal("0.12"), reason="Again", valid_from=month.since, created_by="root"
    )
    use(people.ops, month.since, 1, cluster="now", gpus=1000)
    posting.post()

    def sums(address: str) -> dict[str, list[str]]:
        page = client.get(address).content.decode()
        rows = (
            r'data-label="(Used)" class="num">(.*?)</td>|<th scope="row">(Used|So far)</th><td class="num">(.*?)</td>'
        )
        found: dict[str, list[str]] = {}
        for label, sum_, label2, sum2 in re.findall(rows, page):
            found.setdefault(label or label2, []).append(re.sub("<.*?>", "", sum_ or sum2).strip())
        return found

    listed, invoice = sums("/invoices"), sums(f"/invoices/ops-demo/{month.since:%Y-%m}")
    assert "So far" not in listed
    assert listed["Used"][0] == invoice["Used"][0] == "0.42 USD"
    assert invoice["So far"] == ["0.30 USD"]
    assert "Before credits, and without corrections of earlier months" in client.get("/invoices").content.decode()


def test_the_list_adds_up_and_goes_on(client, people, closed, make_appcode):
    sign_in(client, people.root)
    credit_notes.issue(closed, Decimal("1.25"), "A slow node", acting_user=people.root)
    rows = table(client.get("/invoices?format=csv"))
    assert [(row["appcode"], row["total"], row["credit_notes"], row["to_pay"]) for row in rows] == [
        ("ops-demo", "5.50", "1.25", "4.25"), ("flight-demo", "1.50", "0.00", "1.50"),
    ]  # fmt: skip
    assert [row["appcode"] for row in table(client.get(f"/invoices?format=csv&month={SLUG}"))] == ["ops-demo"]
    assert "CN-" in client.get(f"/invoices/ops-demo/{SLUG}").content.decode()
    body = client.get("/api/v1/invoices?limit=1").json()
    assert [row["number"] for row in body["items"]] == [closed.number]
    assert [row["appcode"] for row in client.get(body["next"]).json()["items"]] == ["flight-demo"]
    assert client.get("/api/v1/invoices?month=May").status_code == 422


def test_the_list_takes_the_same_queries_for_any_number(client, people, closed, make_appcode):
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    def queries() -> int:
        with CaptureQueriesContext(connection) as seen:
            assert client.get("/invoices").status_code == 200
        return len(seen)

    sign_in(client, people.root)
    queries()
    few = queries()
    document = closed.document
    for n in range(20):
        code = make_appcode(f"tenant-{n}", org=f"corp.line{n % 5}", namespace=f"line{n % 5}", owner=people.alice)
        facts = {name: value for name, value in document.__dict__.items() if name != "number"}
        Invoice.of(type(document)(number=f"INV-{n}", **facts | {"lines": (), "used": ()}), code.pk).save()
    assert queries() == few


def test_a_bad_credit_note_is_told_beside_its_field(client, people, closed):
    sign_in(client, people.root)
    answer = client.post(f"/invoices/ops-demo/{SLUG}/notes", {"amount": "99", "reason": "x"})
    assert answer.status_code == 422
    assert "At most 5.50" in answer.content.decode()
    answer = client.post(
        f"/api/v1/appcodes/ops-demo/invoices/{SLUG}/credit-notes", {"amount": "99", "reason": "x"}, "application/json"
    )
    assert [error["path"] for error in answer.json()["errors"]] == ["amount"]
    answer = client.post(
        f"/api/v1/appcodes/ops-demo/invoices/{SLUG}/credit-notes", {"amount": "1", "reason": "x"}, "application/json"
    )
    assert (answer.status_code, answer.json()["number"]) == (201, f"CN-{closed.number.removeprefix('INV-')}-1")


# REST of prices


def test_rest_of_prices(client, people, closed):
    sign_in(client, people.root)
    later = f"{timezone.now() + dt.timedelta(days=3):%Y-%m-%dT%H:%M:%SZ}"
    asked = {"sku": "gpu:A100", "perHour": "4.25", "validFrom": later, "appcode": "ops-demo"}
    preview = client.post("/api/v1/prices/preview", asked, "application/json").json()
    assert preview["kind"] == "price-effect"
    answer = client.post("/api/v1/prices", asked, "application/json")
    assert (answer.status_code, answer.json()["perHour"], answer.json()["appcode"]) == (201, "4.25", "ops-demo")
    number = answer.json()["id"]
    assert client.get("/api/v1/prices").json()["items"][0]["id"] == number
    assert client.get(f"/admin/prices/{number}/effect").status_code == 200
    file = client.get("/api/v1/prices/file").content.decode()
    assert client.post("/api/v1/prices/file", file, "text/csv").json() == {"added": 0, "changed": 0, "unchanged": 2}
    wrong = client.post("/api/v1/prices/file", file + "gpu,,,-1,2099-01-01\r\n", "text/csv").json()
    assert [error["path"] for error in wrong["errors"]] == ["4.per_hour"]
    assert client.delete(f"/api/v1/prices/{number}").status_code == 204
    first = Price.objects.get()
    assert client.delete(f"/api/v1/prices/{first.pk}").status_code == 409
    past = {"validFrom": "2026-01-01T00:00:00Z"}
    for change, path in (
        ({"perHour": 4.25}, "perHour"), ({"appcode": "nobody"}, "appcode"), ({"sku": "x"}, "sku"), (past, "validFrom"),
        ({"perHour": "-1"}, "perHour"), ({"businessLine": "qunarcorp"}, "businessLine"),
    ):  # fmt: skip
        answer = client.post("/api/v1/prices", asked | change, "application/json")
        assert [error["path"] for error in answer.json()["errors"]] == [path]
    discount = client.post("/api/v1/discounts", {"sku": "*", "percent": "5"}, "application/json").json()
    assert client.delete(f"/api/v1/discounts/{discount['id']}").status_code == 204
    given = {"amount": "20", "reason": "sorry"}
    credit = client.post("/api/v1/appcodes/ops-demo/credits", given, "application/json").json()
    assert (credit["left"], credit["currency"]) == ("20.00", "USD")
    months = [each["month"] for each in client.get("/api/v1/months").json()["items"]]
    assert SLUG in months
    assert months == sorted(months, reverse=True)
    assert client.post(f"/api/v1/months/{SLUG}/close").status_code == 409


# The page of prices


def test_a_price_for_an_appcode_is_tried_then_added(client, people, closed):
    sign_in(client, people.root)
    use(people.ops, periods.month(timezone.now()).since, 1, cluster="now")
    asked = {"sku": "gpu", "per_hour": "3600", "appcode": "ops-demo", "business_line": "", "valid_from": ""}
    page = client.post("/admin/prices", asked | {"preview": "1"}).content.decode()
    assert "What it will do" in page
    assert 'value="3600"' in page
    assert not Price.objects.filter(appcode=people.ops).exists()
    assert client.post("/admin/prices", asked).status_code == 302
    assert Price.objects.get(appcode=people.ops).per_hour == 3600
    for change, words in (
        ({"appcode": "nobody"}, "There is no appcode nobody"), ({"business_line": "qunarcorp.ops"}, "not both"),
        ({"appcode": "", "per_hour": ""}, "Only a special price can end"),
    ):  # fmt: skip
        answer = client.post("/admin/prices", asked | change)
        assert answer.status_code == 422
        assert words in answer.content.decode()


def test_an_import_is_looked_at_first(client, people, closed):
    sign_in(client, people.root)
    text = client.get("/admin/prices/export").content.decode() + "cpu,,,0.03,2099-01-01\r\n"
    page = client.post("/admin/prices/import", {"text": text, "check": "1"}).content.decode()
    assert "1 price will change" in page
    assert "cpu,,,0.03,2099-01-01" in page
    assert Price.objects.count() == 1
    upload = io.BytesIO(text.encode("utf-8-sig"))
    upload.name = "prices.csv"
    assert client.post("/admin/prices/import", {"file": upload}).status_code == 302
    assert Price.objects.count() == 2
    wrong = client.post("/admin/prices/import", {"text": text + "tpu,,,1,2099-01-01\n"})
    assert wrong.status_code == 422
    assert "<code>sku</code>" in wrong.content.decode()
    for facts in ({}, {"text": " "}):
        assert client.post("/admin/prices/import", facts).status_code == 422
    latin = io.BytesIO("sku,ü".encode("latin-1"))
    latin.name = "prices.csv"
    assert "UTF-8" in client.post("/admin/prices/import", {"file": latin}).content.decode()


# Mail


def test_an_invoice_is_mailed_once_to_the_notification_addresses(closed):
    # Sending of the earlier month's invoice was given up long ago.
    assert mails.send_due() == 1
    assert mails.send_due() == 0
    (letter,) = outbox.outbox
    assert letter.to == ["ops-demo@example.com"]
    assert "5.50 USD" in letter.subject
    assert f"/invoices/ops-demo/{SLUG}" in letter.body
    told = access.told(access.mail_of(closed))
    assert (told.state, told.note) == ("sent", "Sent to ops-demo@example.com")


def test_without_a_mail_server_the_page_says_so_and_the_mail_waits(client, people, closed, settings):
    settings.EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"
    assert mails.send_due() == 0
    page = sign_in(client, people.alice).get(f"/invoices/ops-demo/{SLUG}").content.decode()
    assert "no mail server is configured" in page
    assert "No mail server is configured" in sign_in(client, people.root).get("/admin/months").content.decode()
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
    assert mails.send_due() == 1


class Server:
    """A real mail server on loopback that refuses the first messages with a temporary error."""

    def __init__(self, refused: int) -> None:
        self.refused, self.letters = refused, []

    async def handle_DATA(self, server, session, envelope):
        if self.refused:
            self.refused -= 1
            return "451 try again later"
        self.letters.append(message_from_bytes(envelope.content))
        return "250 OK"


@pytest.fixture
def smtp(settings):
    handler = Server(refused=1)
    controller = Controller(handler, hostname="127.0.0.1", port=free_port(), ready_timeout=60)
    controller.start()
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT = controller.hostname, controller.port
    yield handler
    controller.stop()


def test_what_a_mail_server_refuses_is_tried_again(closed, smtp, client, people):
    now = timezone.now()
    assert mails.send_due(now) == 0
    waiting = access.mail_of(closed)
    assert "451" in waiting.error
    page = sign_in(client, people.alice).get(f"/invoices/ops-demo/{SLUG}").content.decode()
    assert "it will be tried again" in page
    assert waiting.due_at > now
    assert mails.send_due(waiting.due_at) == 1
    (letter,) = smtp.letters
    assert letter["To"] == "ops-demo@example.com"
    assert letter["Auto-Submitted"] == "auto-generated"
    assert letter["Message-ID"]


def test_a_mail_that_was_given_up_is_tried_again_when_an_owner_asks(closed, smtp, client, people):
    smtp.refused = 99
    now = timezone.now()
    for _ in range(60):
        mails.send_due(now)
        now = max(Mail.objects.values_list("due_at", flat=True))
    mail = access.mail_of(closed)
    assert mail.tries < 60
    Mail.objects.filter(pk=mail.pk).update(give_up_at=timezone.now())
    assert access.told(access.mail_of(closed)).again
    smtp.refused = 0
    page = sign_in(client, people.alice).get(f"/invoices/ops-demo/{SLUG}").content.decode()
    assert "Send again" in page
    assert client.post(f"/invoices/ops-demo/{SLUG}/mail").status_code == 302
    assert mails.send_due() == 1
    assert client.post(f"/invoices/ops-demo/{SLUG}/mail").status_code == 404


@pytest.mark.django_db(transaction=True)
def test_two_senders_at_once_send_each_mail_once(smtp, transactional_db, people):
    smtp.refused = 0
    now = timezone.now()
    mails.queue([mails.Letter(f"letter {n}", people.ops.pk, f"letter {n}", "x") for n in range(12)], now)
    barrier = threading.Barrier(4)

    def send() -> None:
        try:
            barrier.wait()
            mails.send_due(now)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(letter["Subject"] for letter in smtp.letters) == sorted(f"letter {n}" for n in range(12))


def test_closing_by_hand_goes_through_the_page(client, people):
    Price.objects.create(sku="gpu", per_hour=Decimal("1.5"), valid_from=dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
    use(people.ops, MONTH.since, HOUR)
    posting.post()
    Closing.objects.create(month=MONTH.since.date(), due_at=timezone.now() + dt.timedelta(days=2))
    sign_in(client, people.root)
    by_hand = f"/admin/months/{SLUG}/close"
    assert by_hand in client.get("/admin/months").content.decode()
    assert client.post(by_hand).status_code == 302
    closing.close_due()
    assert by_hand not in client.get("/admin/months").content.decode()
    assert LedgerEntry.objects.filter(kind="credit").count() == 0
    assert Invoice.objects.count() == 1
