"""The frame: navigation, counters, lists, formatting of values, and error pages."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest
from django.core.cache import cache
from django.db import OperationalError, connection, transaction
from django.template import Context, Template
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from portal import extension_points
from portal.api.problems import Unavailable
from portal.events import record
from portal.models import Appcode, Event
from portal.pages import appcodes as pages_appcodes
from portal.pages import error_pages, layout
from portal.templatetags import portal as tags

HOUR = 3600


@pytest.fixture
def gpu_counter(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replaces the GPU counter with one that returns three GPUs. Returns the list of the calls' arguments."""
    monkeypatch.setattr(pages_appcodes, "GPU_CACHE_SECONDS", 600)
    asked: list[Any] = []
    counter = lambda appcodes: asked.append(list(appcodes)) or extension_points.GpuUse(3, simulated=True)  # type: ignore[func-returns-value]  # noqa: E731
    monkeypatch.setattr(extension_points, "gpu_use", extension_points.ExtensionPoint(counter))
    monkeypatch.setattr(extension_points, "gpu_pool", extension_points.ExtensionPoint(lambda: 12))
    cache.clear()
    return asked


# Formatting of values


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0, "0 s"),
        (45, "45 s"),
        (60, "1 min"),
        (200, "3 min 20 s"),
        (HOUR, "1 h"),
        (7500, "2 h 5 min"),
        (90061, "1 d 1 h"),
        (-5, "0 s"),
    ],
)
def test_durations(seconds: int | None, text: str) -> None:
    assert tags.duration(seconds) == text


def test_how_long_something_took_is_the_difference_of_the_seconds_shown() -> None:
    start = dt.datetime(2026, 1, 31, 18, 0, 0, 900_000, dt.UTC)
    assert ">57 s<" in str(tags.elapsed(start, start + dt.timedelta(seconds=56, microseconds=200_000)))


@given(st.integers(0, 10**9))
def test_a_duration_loses_less_than_its_second_unit(seconds: int) -> None:
    size = {"d": 86400, "h": 3600, "min": 60, "s": 1}
    words = tags.duration(seconds).split()
    told = sum(int(number) * size[unit] for number, unit in zip(words[::2], words[1::2], strict=True))
    assert 0 <= seconds - told < max(1, size[words[1]] // 24 if words[1] == "d" else size[words[1]] // 60)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536 * 1024, "1.5 MiB"), (2**60, "1,024.0 PiB")],
)
def test_bytes(count: int, text: str) -> None:
    assert tags.bytes_(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(0, "0.00"), (10, "< 0.01"), (1800, "0.50"), (3600 * 1234, "1,234.00")])
def test_gpu_hours(seconds: int, text: str) -> None:
    assert tags.gpu_hours(seconds) == text


def test_money_has_its_currency_and_never_rounds_something_to_nothing(settings: Any) -> None:
    settings.CURRENCY = "EUR"
    assert ">1,234.50 <small>EUR<" in tags.money(Decimal("1234.5"))
    assert ">&lt; 0.01 <small>EUR<" in tags.money(Decimal("0.0004"))
    assert ">0.0004 <small>EUR<" in tags.money(Decimal("0.0004"), 4)
    assert ">0.00 <small>EUR<" in tags.money(0)


@pytest.mark.parametrize(
    ("away", "text"),
    [(0, "just now"), (-300, "5 min ago"), (-7200, "2 h ago"), (300, "in 5 min"), (90 * 86400 - 5, "in 90 d")],
)
def test_times_are_relative_with_the_exact_one_in_the_tooltip(away: int, text: str) -> None:
    at = timezone.now() + dt.timedelta(seconds=away)
    html = tags.time(at)
    assert f">{text}</time>" in html
    assert f'title="{at:%Y-%m-%d %H:%M:%S} UTC"' in html


@pytest.mark.parametrize(
    ("word", "shape"),
    [
        ("Queued", "queued"),
        ("Starting", "starting"),
        ("Running", "running"),
        ("Succeeded", "succeeded"),
        ("Failed", "failed"),
        ("Stopped", "stopped"),
        ("Unheard", "none"),
    ],
)
def test_a_state_has_a_shape_a_word_and_a_colour(word: str, shape: str) -> None:
    html = tags.state(word)
    assert f"state-{shape}" in html
    assert html.endswith(f"{word}</span>")


def test_what_people_wrote_is_escaped_by_every_tag() -> None:
    evil = '"><script>'
    page = "{% load portal %}{% state x x %}{% copy x x %}{% menu x %}{{ x }}{% endmenu %}{% tab x x %}{% chip x x x %}"
    request = RequestFactory().get("/?" + "a=%22%3E%3Cscript%3E")
    assert "<script>" not in Template(page).render(Context({"x": evil, "request": request}))


# Navigation and counters


def lit(page: Any) -> list[str]:
    """The entries of the navigation that are marked as current."""
    return [link.label for _, links in page.context["navigation"] for link in links if link.current]


@pytest.mark.django_db
def test_navigation_shows_only_pages_that_exist_and_are_for_me(client: Client, people: Any) -> None:
    client.force_login(people.alice)
    page = client.get("/appcodes")
    assert "Admin" not in dict(page.context["navigation"])
    assert lit(page) == ["Appcodes"]
    assert lit(client.get("/appcodes/ops-demo/compare")) == ["Results"]
    assert lit(client.get("/storage/ops-demo")) == ["Datastores"]
    assert lit(client.get("/")) == ["Home"]
    assert lit(client.get("/profile")) == [], "no page is below Home"
    client.force_login(people.root)
    page = client.get("/admin/people/alice")
    assert lit(page) == ["People"]
    for _, links in page.context["navigation"]:
        for link in links:
            assert client.get(link.url).status_code == 200, link


@pytest.mark.django_db
def test_the_gpu_counter_counts_what_the_switcher_shows(client: Client, people: Any, gpu_counter: list[Any]) -> None:
    client.force_login(people.root)
    text = " ".join(client.get("/frame/gpus").content.decode().split())
    assert 'used · pool</span><span class="gpus-short"> /</span> 12' in text, (
        "who sees all appcodes is told of the machines"
    )
    assert "sim<" in text
    client.get("/frame/gpus")
    assert len(gpu_counter) == 1, "answered from the cache"
    client.post("/frame/appcode", {"appcode": "flight-demo"})
    text = " ".join(client.get("/frame/gpus").content.decode().split())
    assert 'used · quota</span><span class="gpus-short"> /</span> 8' in text
    assert [appcode.code for appcode in gpu_counter[-1]] == ["flight-demo"]


@pytest.mark.django_db
def test_the_frame_itself_costs_one_query(client: Client, people: Any, django_assert_max_num_queries: Any) -> None:
    client.force_login(people.alice)
    client.get("/search")
    with django_assert_max_num_queries(1):
        client.get("/search")


@pytest.mark.django_db
def test_a_list_of_many_appcodes_is_three_queries_and_pages_by_key(
    client: Client, people: Any, make_appcode: Any, django_assert_max_num_queries: Any
) -> None:
    for n in range(120):
        make_appcode(f"many-{n:03}", org="qunarcorp.ops", namespace="ops", owner=people.bob)
    client.force_login(people.bob)
    client.get("/appcodes")
    with django_assert_max_num_queries(3):
        page = client.get("/appcodes")
    seen = [appcode.code for appcode in page.context["appcodes"]]
    while cursor := page.context["next_cursor"]:
        assert f"?cursor={cursor}" in page.content.decode()
        page = client.get(f"/appcodes?cursor={cursor}")
        seen += [appcode.code for appcode in page.context["appcodes"]]
    assert seen == [*(f"many-{n:03}" for n in range(120)), "ops-demo"]


@pytest.mark.django_db
@pytest.mark.parametrize(
    "query",
    [
        "cursor=%00",
        "search=%00",
        "appcode=%00",
        "cursor=99999999999999999999",
        "cursor=x",
        "state=x",
        "search=" + "x" * 5000,
        "search=%25_",
    ],
)
@pytest.mark.parametrize(
    "path", ["/appcodes", "/admin/audit", "/admin/people", "/admin/orgs", "/search", "/frame/gpus"]
)
def test_odd_questions_are_answered(client: Client, people: Any, path: str, query: str) -> None:
    client.force_login(people.root)
    assert client.get(f"{path}?{query}").status_code == 200


@pytest.mark.django_db
def test_the_log_is_searched_and_paged(client: Client, people: Any) -> None:
    with transaction.atomic():
        for n in range(1, 61):
            record("appcode.changed", actor=people.root, appcode="ops-demo", message=f"quota from {n - 1} to {n} GPUs")
    client.force_login(people.root)
    page = client.get("/admin/audit")
    assert len(page.context["events"]) == layout.PAGE
    rest = client.get(f"/admin/audit?cursor={page.context['next_cursor']}").context["events"]
    assert len(rest) == 10
    found = client.get("/admin/audit?search=quota+60&actor=root&appcode=ops-demo").context["events"]
    assert [event.message for event in found] == ["quota from 59 to 60 GPUs"]
    assert Event.objects.count() == 60
    today = f"{timezone.now():%F}"
    for query, count in (
        (f"from={today}&kind=appcode", 60),
        (f"to={today}&kind=person", 0),
        ("to=2020-01-01", 0),
        ("from=x", 60),
    ):
        lines = client.get(f"/admin/audit?{query}&format=csv").content.decode().splitlines()
        assert len(lines) == 1 + count, query
    assert '<a href="/appcodes/ops-demo">' not in page.content.decode(), "these events are about nothing"


@pytest.mark.django_db
def test_the_palette_knows_every_page_and_help_says_what_is_to_be_set_up(client: Client, people: Any) -> None:
    client.force_login(people.alice)

    def links(words: str) -> str:
        return client.get("/search/palette", {"q": words}).content.decode()

    assert 'href="/clusters/new"' in links("new clu")
    assert 'href="/clusters/new"' in links(""), "it offers actions before anything is typed"
    assert 'href="/billing"' in links("billing")
    assert 'href="/invoices"' in links("invoices")
    assert 'name="theme" value="dark"' in links("dark")
    assert "/admin/" not in links("a")
    assert "Set prices" not in client.get("/help").content.decode()
    client.force_login(people.root)
    for _, entries in client.get("/search").context["navigation"]:
        for entry in entries:
            assert f'href="{entry.url}"' in links(entry.label.replace("&", "")), entry
    assert "Set prices" in client.get("/help").content.decode()


@pytest.mark.django_db
def test_help_is_searched_and_leads_on_to_the_search_of_everything(client: Client, people: Any) -> None:
    client.force_login(people.alice)

    def found(words: str) -> tuple[list[str], str]:
        page = client.get("/help", {"search": words})
        return [term.name for term in page.context["terms"]], page.content.decode()

    terms, page = found("busy hour")
    assert terms == ["GPU-hour"]
    assert 'href="/search?q=busy%20hour"' in page
    assert "Create a token" in found("api")[1]
    assert "Help does not say" in found("qwertz")[1]
    assert "Help does not say" not in found("")[1]


@pytest.mark.django_db
@pytest.mark.parametrize("theme", ["light", "dark", "auto", "pink"])
def test_the_theme_is_kept_without_javascript(client: Client, people: Any, theme: str) -> None:
    assert client.post("/frame/theme?next=/profile", {"theme": theme})["Location"] == "/profile"
    page = client.get("/accounts/login/").content.decode()
    expected = "auto" if theme == "pink" else theme
    assert f'data-theme="{expected}"' in page
    assert (f'data-scheme="{expected}"' in page) == (expected != "auto")


# Errors


@pytest.mark.django_db
def test_a_page_that_is_not_there_says_so_with_an_id(client: Client, people: Any) -> None:
    client.force_login(people.alice)
    answer = client.get("/no/such/page")
    text = answer.content.decode()
    assert answer.status_code == 404
    assert "What you can do" in text
    assert answer["X-Request-ID"] in text
    assert "tried" not in text, "the resolver's words are for programmers"
    assert 'name="q" value="page"' in text, "what was looked for is in the search"


@pytest.mark.django_db
def test_forbidden_tells_which_role_it_needs(client: Client, people: Any) -> None:
    client.force_login(people.victor)
    answer = client.get("/appcodes/ops-demo/change")
    assert answer.status_code == 403
    assert "You need to be owner of ops-demo" in answer.content.decode()


def test_the_error_page_needs_no_database() -> None:
    request = RequestFactory().get("/anything")
    request.error_id = "0badcafe"  # type: ignore[attr-defined]
    answer = error_pages.server_error(request)
    assert answer.status_code == 500
    assert "0badcafe" in answer.content.decode()
    assert "data is safe" in answer.content.decode()
    problem = error_pages.server_error(RequestFactory().get("/api/v1/clusters"))
    assert problem["Content-Type"] == "application/problem+json"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("failure", "status", "said"),
    [
        (RuntimeError("a bug"), 500, "Something went wrong"),
        (OperationalError("a bug"), 503, "database does not answer"),
        (Unavailable("Two files of yours are on their way."), 503, "Two files of yours"),
    ],
)
def test_a_failure_keeps_the_navigation_without_asking_the_database(
    client: Client,
    people: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: Any,
    failure: Exception,
    status: int,
    said: str,
) -> None:
    with CaptureQueriesContext(connection) as asked:
        before = 0

        def broken(*args: object, **kwargs: object) -> None:
            nonlocal before
            before = len(asked)
            raise failure

        client.force_login(people.alice)
        client.raise_request_exception = False
        monkeypatch.setattr(layout, "matching", broken)
        answer = client.get("/appcodes")
        assert len(asked) == before, "the page of the error asked the database"
    page = answer.content.decode()
    assert answer.status_code == status
    assert said in page
    assert 'aria-current="page"' in page, "the navigation says where one is"
    assert 'href="/appcodes">Try again' in page
    assert answer["X-Request-ID"] in page
    assert f"error id {answer['X-Request-ID']}" in caplog.text
    assert "a bug" not in page
    # If the database fails, the change may have happened; after Unavailable nothing has changed.
    monkeypatch.setattr(layout, "came_from", lambda _: "/appcodes")
    monkeypatch.setattr(pages_appcodes, "attempt", broken)
    page = client.post("/appcodes/ops-demo/request/withdraw").content.decode()
    assert said in page
    assert ("before you send it again" in page) == (not isinstance(failure, Unavailable))


@pytest.mark.django_db
def test_a_failure_before_anybody_is_known_stands_alone(
    client: Client, people: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the database the page cannot identify the user, not even for the navigation."""
    client.force_login(people.alice)
    client.raise_request_exception = False

    def away(*_: object) -> None:
        raise OperationalError("the server closed the connection")

    with connection.execute_wrapper(away):
        answer = client.get("/appcodes")
    assert answer.status_code == 503
    assert "data is safe" in answer.content.decode()
    assert "<nav" not in answer.content.decode()


@pytest.mark.django_db
def test_a_form_that_was_too_old_leads_back_to_itself(people: Any) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(people.alice)
    sent = {"HTTP_REFERER": "http://testserver/appcodes/new?from=help"}
    answer = client.post("/appcodes/new", {"code": "x"}, **sent)
    assert answer.status_code == 403
    assert 'href="/appcodes/new?from=help">Load the page again' in answer.content.decode()
    for referer in ("https://evil.example/x", "http://testserver//evil.example/x"):
        elsewhere = client.post("/appcodes/new", {"code": "x"}, HTTP_REFERER=referer)
        assert 'href="//evil.example' not in elsewhere.content.decode()
        assert 'href="https://evil.example' not in elsewhere.content.decode()


@pytest.mark.django_db
def test_a_person_in_nothing_is_told_what_to_do(client: Client, people: Any) -> None:
    from portal.models import User

    client.force_login(User.objects.create_user("carol", "carol@example.com", "x"))
    page = client.get("/appcodes").content.decode()
    assert "You are not in an appcode yet" in page
    assert "Request an appcode" in page
    assert Appcode.objects.count() == 2
