"""The price book: file imports (all or nothing, each error at its place), effects of a change, discounts and credits."""

import datetime as dt
from dataclasses import replace
from decimal import Decimal

import pytest
from django.db import transaction
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from billing import periods
from billing.accounts.actions import give_credit
from billing.metering import record as metering_record
from billing.metering.segments import PodState
from billing.models import Credit, Discount, Price
from billing.prices import actions, effects, terms
from billing.prices import file as price_file
from billing.prices.book import price_book
from billing.prices.file import Row
from billing.prices.rates import DatedPrice, Prices
from portal.errors import Conflict, Invalid
from portal.models import Event, OrgNode

PAST = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
HEAD = "sku,appcode,business_line,per_hour,valid_from\n"


def soon(days: float = 1) -> dt.datetime:
    return timezone.now().replace(microsecond=0) + dt.timedelta(days=days)


def text(moment: dt.datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


@pytest.fixture
def prices(people):
    Price.objects.create(sku="gpu", per_hour=Decimal("1.5"), valid_from=PAST)
    Price.objects.create(sku="gpu:A100", per_hour=Decimal("0.000001"), valid_from=PAST, business_line="qunarcorp.ops")
    Price.objects.create(sku="cpu", per_hour=None, valid_from=soon(3), appcode=people.ops)
    Price.objects.create(sku="memory", per_hour=Decimal("1E+3"), valid_from=soon(2))


def errors(caught) -> list[tuple[str, str]]:
    return [(error.path[0], error.path[1]) for error in caught.value.errors]


def rows() -> list[tuple]:
    return sorted(Price.objects.values_list("pk", "sku", "per_hour", "valid_from", "appcode", "business_line"))


# The file

words = st.text(st.characters(codec="utf-8", exclude_characters=":", categories=["L", "N"]), min_size=1, max_size=20)
drawn = st.builds(
    Row,
    st.sampled_from(["gpu", "cpu", "memory", "storage"]) | words.map(lambda word: f"gpu:{word}{word}x"),
    st.just(""),
    st.sampled_from(["qunarcorp.ops", "a.b"]),
    st.none() | st.decimals(min_value=0, max_value=99_999_999, places=6),
    st.integers(0, 3 * 10**9).map(lambda seconds: dt.datetime.fromtimestamp(seconds, dt.UTC)),
)


@given(st.lists(drawn, max_size=20, unique_by=lambda row: row.key))
def test_what_is_written_is_read_again(rows_):
    found, wrong = price_file.read(price_file.write(rows_))
    assert wrong == []
    assert sorted((row for _, row in found), key=lambda row: row.key) == sorted(rows_, key=lambda row: row.key)


@given(st.text() | st.text().map(lambda tail: HEAD + tail))
def test_whatever_is_read_is_understood_or_told(text_):
    found, wrong = price_file.read(text_)
    assert all(error.path[0].isdigit() and error.message for error in wrong)
    # A line of empty cells counts as blank.
    assert found or wrong or not text_.removeprefix(HEAD).translate({ord(each): None for each in ',"'}).strip()


def test_importing_an_export_changes_nothing(prices, root):
    before, events = rows(), Event.objects.count()
    done = actions.import_prices(actions.exported(), acting_user=root)
    assert (done.changes, done.unchanged) == ((), 4)
    # With the BOM and line ends that spreadsheets on Windows write.
    done = actions.import_prices("\ufeff" + actions.exported().replace("\r\n", "\n"), acting_user=root)
    assert (done.changes, done.unchanged) == ((), 4)
    # Even if a price belongs to a former business line.
    OrgNode.objects.filter(path="qunarcorp.ops").update(namespace=None)
    assert actions.import_prices(actions.exported(), acting_user=root).unchanged == 4
    assert rows() == before
    assert Event.objects.count() == events


def test_a_file_brings_new_prices_and_mends_those_that_do_not_hold_yet(prices, root):
    file = actions.exported().replace("1000", "0.0042") + f"gpu:H100,flight-demo,,7.25,{text(soon(5))}\r\n"
    file += f"storage,,,0,{soon(5):%Y-%m-%d}\r\n"
    done = actions.import_prices(file, acting_user=root)
    assert (len(done.changes), done.unchanged) == (3, 3)
    assert Price.objects.get(sku="memory").per_hour == Decimal("0.0042")
    assert Price.objects.get(sku="gpu:H100").appcode.code == "flight-demo"
    assert Price.objects.get(sku="storage").valid_from.hour == 0
    verbs = list(Event.objects.order_by("id").values_list("verb", "actor_name"))
    assert verbs == [("price.withdrawn", "root"), *3 * [("price.added", "root")], ("prices.imported", "root")]
    assert actions.import_prices(file, acting_user=root).changes == ()


def test_every_mistake_is_told_with_its_line_and_column_and_nothing_is_imported(prices, root):
    before, later = rows(), text(soon())
    file = "\n".join(
        [
            HEAD.strip(),
            f"gpu,,,2,{later}",
            f"tpu,,,2,{later}",
            f"gpu,nobody,,2,{later}",
            f"gpu,ops-demo,qunarcorp.ops,2,{later}",
            f"gpu,,nowhere,2,{later}",
            f"gpu:T4,,,-1,{later}",
            f"gpu:T4,,,many,{later}",
            f"cpu,,,,{later}",
            "cpu,,,1,tomorrow",
            "cpu,,,1,2026-01-01T00:00:00",
            "cpu,,,1,2025-01-01",
            f"gpu,,,9,{text(PAST)}",
            f"gpu,,,2,{later}",
            f"gpu,,,2,{later},x",
            "",
            "cpu",
            f"cpu,,,1E-9,{later}",
        ]
    )
    with pytest.raises(Invalid) as caught:
        actions.import_prices(file, acting_user=root)
    assert errors(caught) == [
        ("3", "sku"), ("4", "appcode"), ("5", "business_line"), ("6", "business_line"), ("7", "per_hour"), ("8", "per_hour"),
        ("9", "per_hour"), ("10", "valid_from"), ("11", "valid_from"), ("12", "valid_from"), ("13", "per_hour"),
        ("14", "valid_from"), ("15", "valid_from"), ("17", "sku"), ("18", "per_hour"),
    ]  # fmt: skip
    assert rows() == before
    assert not Event.objects.exists()


@pytest.mark.parametrize(
    "file", ["", "sku;appcode;business_line;per_hour;valid_from\n", 'sku,appcode\n"', HEAD + '"gpu']
)
def test_what_is_no_such_file_is_told(prices, root, file):
    with pytest.raises(Invalid) as caught:
        actions.import_prices(file, acting_user=root)
    assert len(caught.value.errors) == 1


def test_a_file_has_so_many_prices_at_most(prices, root):
    later = soon()
    lines = (f"gpu,,,1,{text(later + dt.timedelta(seconds=n))}\n" for n in range(price_file.MAX_ROWS + 1))
    with pytest.raises(Invalid, match="At most 5,000"):
        actions.import_prices(HEAD + "".join(lines), acting_user=root)


def test_only_administrators_change_prices(prices, alice, ops):
    for attempt in (
        lambda: actions.import_prices(HEAD, acting_user=alice),
        lambda: actions.add_price("gpu", Decimal(1), None, acting_user=alice),
        lambda: terms.add_discount("*", Decimal(5), None, None, "", acting_user=alice, scope=actions.EVERYBODY),
        lambda: give_credit(ops, Decimal(5), "me", None, None, acting_user=alice),
    ):
        with pytest.raises(Exception, match="no such page"):
            attempt()


# Effects of a change


def pod(appcode, uid: str, hours: int, model: str = "A100", begin: dt.datetime | None = None) -> PodState:
    begin = begin or periods.month(timezone.now()).since
    end = begin + dt.timedelta(hours=hours)
    labels = {"cluster": "show1", "run": "1"}
    return PodState(uid, "local", appcode.pk, "run 1", labels, "Succeeded", 1, model, 0, 0, begin, begin, end)


def record(*states: PodState) -> None:
    with transaction.atomic():
        metering_record.record(states, seen_at=timezone.now() + dt.timedelta(days=40))


@pytest.fixture
def now():
    """Returns the time two hours after the start of this month."""
    return periods.month(timezone.now()).since + dt.timedelta(hours=2)


def test_a_price_tells_what_it_would_have_done_to_this_month(people, prices, now):
    record(pod(people.ops, "p-1", 1, "T4"), pod(people.flight, "p-2", 2, "T4"), pod(people.flight, "p-3", 1, "A100"))
    before = price_book()
    found = effects.effect([DatedPrice("gpu", soon(60), Decimal("2.5"))], now)
    assert (found.before, found.after, found.percent) == (Decimal(6), Decimal(10), Decimal(200) / 3)
    assert [(row.appcode, row.before, row.after) for row in found.rows] == [
        ("flight-demo", Decimal("4.5"), Decimal("7.5")), ("ops-demo", Decimal("1.5"), Decimal("2.5")),
    ]  # fmt: skip
    assert found.rest is None
    assert price_book() == before


def test_a_price_of_one_appcode_or_line_changes_only_theirs(people, prices, now):
    record(pod(people.ops, "p-1", 1, "T4"), pod(people.flight, "p-2", 1, "T4"))
    for change in (
        DatedPrice("gpu:T4", soon(), Decimal(9), people.flight.pk),
        DatedPrice("gpu", soon(), Decimal(9), None, "qunarcorp.flight"),
    ):
        found = effects.effect([change], now)
        assert [(row.appcode, row.difference) for row in found.rows] == [("flight-demo", Decimal("7.5"))]


def test_what_runs_now_tells_about_the_rest_of_the_month(people, prices, now):
    begin = periods.month(timezone.now()).since
    state = PodState("p", "local", people.ops.pk, "run 1", {}, "Running", 2, "T4", 0, 0, begin, begin)
    record(state)
    found = effects.effect([DatedPrice("gpu", now + dt.timedelta(hours=1), Decimal(2))], now)
    assert (found.hourly_before, found.hourly_after) == (3, 4)
    rest = periods.month(now).until - (now + dt.timedelta(hours=1))
    assert found.rest == Decimal(int(rest.total_seconds())) / 3600


def test_the_rest_of_the_month_pays_each_price_from_its_own_time_on(people, prices, now):
    begin, hour = periods.month(timezone.now()).since, dt.timedelta(hours=1)
    record(PodState("p", "local", people.ops.pk, "run 1", {}, "Running", 2, "T4", 0, 0, begin, begin))
    until = periods.month(now).until
    changes = [
        DatedPrice("gpu", now + hour, Decimal(2)),
        DatedPrice("gpu", now + 11 * hour, Decimal(4)),
        DatedPrice("gpu", until + hour, Decimal(99)),
        DatedPrice("memory", now - hour, Decimal(99)),
    ]
    hours = Decimal((until - now) // hour)
    assert effects.effect(changes, now).rest == 10 * (2 * 2 - 3) + (hours - 11) * (2 * 4 - 3)
    assert effects.effect(changes[2:], now).rest == 0
    assert effects.effect(changes[2:3], now).rest is None


moments = st.integers(-100, 100).map(lambda hours: dt.datetime(2026, 3, 15, tzinfo=dt.UTC) + dt.timedelta(hours=hours))
dated = st.builds(
    DatedPrice, st.sampled_from(["gpu", "gpu:A100", "cpu"]), moments, st.decimals(0, 100, places=2),
    st.sampled_from([None, 1]), st.just(""),
)  # fmt: skip


@given(st.lists(dated, max_size=6), st.lists(dated, max_size=3))
def test_a_book_with_changes_has_each_from_its_own_time_on(old, changes):
    def key(price: DatedPrice) -> tuple[object, ...]:
        return price.sku, price.scope, price.valid_from

    wanted = {key(price): price for price in (*old, *changes)}
    assert {key(price): price for price in price_file.dated(Prices(tuple(old)), changes).dated} == wanted


@given(st.lists(dated, max_size=6), dated, moments)
def test_as_if_only_the_new_price_holds_from_then_on(old, change, since):
    def same(price: DatedPrice) -> bool:
        return (price.sku, price.scope) == (change.sku, change.scope)

    new = price_file.as_if(Prices(tuple(old)), [change], since).dated
    assert [price for price in new if same(price) and price.valid_from >= since] == [replace(change, valid_from=since)]
    kept = [price for price in new if not same(price) or price.valid_from < since]
    assert kept == [price for price in old if not same(price) or price.valid_from < since]


# Discounts and credits


def test_a_discount_is_added_ended_and_taken_back(people, root):
    scope = actions.Scope(business_line="qunarcorp.ops")
    running = terms.add_discount("*", Decimal("12.5"), None, soon(9), "pilot", acting_user=root, scope=scope)
    waiting = terms.add_discount("gpu", Decimal(5), soon(), None, "", acting_user=root, scope=actions.EVERYBODY)
    terms.end_discount(running, acting_user=root)
    running.refresh_from_db()
    assert running.valid_until <= timezone.now() + dt.timedelta(seconds=1)
    terms.end_discount(waiting, acting_user=root)
    assert list(Discount.objects.all()) == [running]
    assert list(Event.objects.order_by("id").values_list("verb", flat=True)) == [
        "discount.added", "discount.added", "discount.ended", "discount.withdrawn",
    ]  # fmt: skip


def test_a_discount_that_is_over_cannot_be_ended(people, root):
    over = Discount.objects.create(sku="*", percent=5, valid_from=PAST, valid_until=PAST + dt.timedelta(days=1))
    with pytest.raises(Conflict, match="over already"):
        terms.end_discount(over, acting_user=root)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"sku": "tpu"}, "sku"), ({"sku": "urgent-gpu"}, "sku"), ({"percent": Decimal(0)}, "percent"),
        ({"percent": Decimal(101)}, "percent"),
        ({"percent": Decimal("1.001")}, "percent"), ({"valid_from": PAST}, "valid_from"), ({"valid_until": PAST}, "valid_until"),
        ({"reason": "x" * 201}, "reason"), ({"scope": actions.Scope(business_line="nowhere")}, "business_line"),
    ],
)  # fmt: skip
def test_bad_discounts_are_told_at_their_path(people, root, change, path):
    asked = {
        "sku": "*", "percent": Decimal(5), "valid_from": None, "valid_until": None, "reason": "",
        "scope": actions.EVERYBODY,
    } | change  # fmt: skip
    with pytest.raises(Invalid) as caught:
        terms.add_discount(**asked, acting_user=root)
    assert [error.path for error in caught.value.errors] == [(path,)]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"amount": Decimal(0)}, "amount"), ({"amount": Decimal("1.001")}, "amount"), ({"amount": Decimal("NaN")}, "amount"),
        ({"reason": " "}, "reason"), ({"expires_at": PAST}, "expires_at"),
        ({"valid_from": dt.datetime(1999, 1, 1, tzinfo=dt.UTC)}, "valid_from"),
    ],
)  # fmt: skip
def test_bad_credits_are_told_at_their_path(people, root, change, path):
    asked = {"amount": Decimal(5), "reason": "sorry", "valid_from": None, "expires_at": None} | change
    with pytest.raises(Invalid) as caught:
        give_credit(people.ops, **asked, acting_user=root)
    assert [error.path for error in caught.value.errors] == [(path,)]
    assert not Credit.objects.exists()


def test_sums_are_asked_as_often_however_many_appcodes_there_are(people, prices, now, django_assert_max_num_queries):
    record(pod(people.ops, "p-1", 1))
    with django_assert_max_num_queries(7):
        effects.effect([DatedPrice("gpu", soon(), Decimal(2), None, "qunarcorp.ops")], now)
