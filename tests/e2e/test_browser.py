"""The main workflow in a real browser against the whole portal: from the New Cluster form to a finished run."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from tests.browser import assert_fits, signed_in
from tests.running import eventually

pytestmark = pytest.mark.e2e
# Milliseconds. Training takes 30 s on an idle machine, and tests share theirs.
TRAINED = 240_000


@pytest.fixture
def page(browser: Browser, portal_up: Any) -> Iterator[Page]:
    with signed_in(browser, portal_up, "alice") as page:
        yield page


def row(page: Page, name: str) -> Locator:
    return page.locator("#rows tr", has=page.get_by_role("link", name=name, exact=True))


def tab(page: Page, name: str) -> None:
    page.locator("nav.tabs").get_by_role("link", name=name).click()


def submit(page: Page, name: str, command: str) -> None:
    """Submits a cluster with one task and no data."""
    page.goto("/clusters/new")
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Command", exact=True).fill(command)
    page.get_by_role("button", name="Create cluster").click()
    page.wait_for_url(f"**/clusters/ops-demo/{name}")


def test_from_the_form_to_a_trained_model(page: Page) -> None:
    page.get_by_role("link", name="New cluster").click()
    page.get_by_label("Name", exact=True).fill("by-hand")
    page.locator("[name=input]").select_option("demo-input")
    page.get_by_label("Output", exact=False).first.select_option("demo-output")
    page.get_by_label("Command", exact=True).fill("python digits_ps.py --steps 1500")
    page.get_by_label("Environment variables").fill("GREETING=hello | DATA_DIR=/elearn/output")
    page.get_by_label("Master").select_option("middle-1-gpu")
    page.locator("summary", has_text="Several machines").click()
    page.locator("[name=ps_flavor]").select_option("small")
    page.locator("[name=ps_count]").fill("1")
    page.locator("[name=worker_count]").fill("2")
    # With workers, their flavor follows the master's.
    expect(page.locator("[name=worker_flavor]")).to_have_value("middle-1-gpu")
    preview = page.locator("#preview")
    expect(preview.get_by_text("Tasks").locator("xpath=following-sibling::dd")).to_have_text("4")
    expect(preview.get_by_text("GPUs", exact=True).locator("xpath=following-sibling::dd")).to_have_text("3")
    expect(preview).to_contain_text(re.compile("Starts now|Waits"))
    page.get_by_role("button", name="Create cluster").click()
    page.wait_for_url("**/clusters/ops-demo/by-hand")
    head = page.locator("#head")
    expect(head).to_contain_text(re.compile("Queued|Starting|Running"))

    # The list updates without a reload.
    page.get_by_role("link", name="Clusters").first.click()
    mine = row(page, "by-hand")
    expect(mine).to_contain_text("Running", timeout=TRAINED)
    for role in ("Master 1 of 1", "Parameter server 1 of 1", "Worker 2 of 2"):
        expect(mine.locator("td[data-label=Work]")).to_contain_text(role)
    expect(mine).to_contain_text("demo-output")

    mine.get_by_role("link", name="by-hand", exact=True).click()
    expect(page.locator("#progress")).to_contain_text("worker-1")
    tab(page, "Logs")
    expect(page.locator("#log")).to_contain_text(re.compile(r"master-0\s+step \d+: loss = "), timeout=TRAINED)
    expect(head).to_contain_text("Succeeded", timeout=TRAINED)
    expect(page.locator("#log")).to_contain_text("Saved the model of step 1500")
    page.get_by_label("Search the whole log").fill("saved the model")
    expect(page.locator("#log-hits")).to_have_text("1")

    tab(page, "Metrics")
    for tag in ("loss", "accuracy", "global_step/sec"):
        expect(page.locator(".chart", has_text=tag).first.locator("svg path").first).to_have_attribute(
            "d", re.compile("^M.*L")
        )
    loss = page.locator(".chart").first
    loss.get_by_text("Values").click()
    expect(loss.locator("tbody tr").first).to_contain_text("1,500")

    tab(page, "Usage")
    expect(page.locator("tbody").first.locator("tr")).to_have_count(4)
    expect(page.get_by_role("main")).to_contain_text("Breakdown")
    assert float(page.locator("tfoot .money").last.get_attribute("title") or 0) > 0
    tab(page, "Events")
    for verb in ("cluster.created", "run.running", "run.succeeded"):
        expect(page.locator("table")).to_contain_text(verb)
    tab(page, "Runs")
    expect(page.locator("tbody tr")).to_contain_text("Succeeded")
    tab(page, "Overview")
    for word in ("Queued", "Starting", "Running", "Succeeded"):
        expect(page.locator(".timeline")).to_contain_text(word)
    page.locator("[id^=outcome]").get_by_role("link", name="demo-output/by-hand/1").click()
    page.get_by_role("link", name="model/", exact=True).click()
    expect(page.get_by_text("saved_model.pb")).to_be_visible()


def test_a_run_that_fails_says_why_and_is_mended_in_the_form(page: Page) -> None:
    submit(page, "broken", "echo before; echo 'the cause of it all' >&2; exit 7")
    head = page.locator("#head")
    expect(head).to_contain_text("Failed", timeout=TRAINED)
    expect(head).to_contain_text("exit code 7")
    expect(page.locator(".failure")).to_contain_text("the cause of it all")
    # The menu has it, too; the button stands in front.
    head.get_by_role("link", name="Re-Deploy with changes").click()
    command = page.get_by_label("Command", exact=True)
    expect(command).to_have_value("echo before; echo 'the cause of it all' >&2; exit 7")
    command.fill("echo \"it's\" '$HOME' `echo Zürich`\n\necho done")
    page.get_by_role("button", name="Re-Deploy").click()
    expect(head).to_contain_text("Succeeded", timeout=TRAINED)
    tab(page, "Logs")
    expect(page.locator("#log")).to_contain_text("it's $HOME Zürich")
    tab(page, "Runs")
    for run in ("broken/1", "broken/2"):
        page.get_by_label(f"Select {run}").check()
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(page.locator(".differences")).to_contain_text("exit 7")


def test_results_are_sorted_filtered_noted_and_compared_in_their_table(page: Page) -> None:
    for n in (1, 2):
        submit(page, f"counts{n}", f"for i in 3 {n} 2; do echo step $((++s)): counted_loss = 0.$i; done")
        expect(page.locator("#head")).to_contain_text("Succeeded", timeout=TRAINED)
    page.goto("/results/ops-demo?search=counts&c=last:counted_loss&c=best:counted_loss&c=tags")
    lines = page.locator("#rows tbody tr")
    # What is printed is read when a run is gone, and open pages show it.
    for text in ("0.1 @ 2", "0.2 @ 2"):
        eventually(lambda text=text: page.reload() and text in page.locator("#rows").inner_text(), TRAINED / 1000)
    page.get_by_role("link", name="counted_loss best", exact=True).click()
    page.wait_for_url("**sort=best:counted_loss**")
    expect(lines.first).to_contain_text("counts1/1")
    page.get_by_label("Actions for counts2/1").click()
    page.get_by_role("textbox", name="Tags").fill("baseline")
    page.get_by_role("button", name="Save").click()
    expect(lines.nth(1)).to_contain_text("baseline")
    page.get_by_label("Only runs where").fill("best:counted_loss > 0.15")
    page.keyboard.press("Enter")
    expect(lines).to_have_count(1)
    # The order stays, and a link shows the same.
    assert "sort=best:counted_loss" in page.url
    page.reload()
    expect(lines).to_have_count(1)
    assert_fits(page, "results")
    page.get_by_label("Only runs where").fill("")
    page.keyboard.press("Enter")
    expect(lines).to_have_count(2)
    page.get_by_label("Select all").check()
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(page.get_by_role("region", name="Metrics of the runs")).to_contain_text("0.1 @ 2")
    assert_fits(page, "compare")


def test_a_long_line_and_a_log_that_goes_on(page: Page) -> None:
    submit(
        page,
        "talks",
        "head -c 1000000 /dev/zero | tr '\\0' x; echo; for i in $(seq 5000); do echo count $i; sleep 0.2; done",
    )
    tab(page, "Logs")
    log = page.locator("#log")
    expect(log.get_by_text("count 3", exact=True)).to_be_visible(timeout=TRAINED)
    page.reload()
    expect(log.get_by_text("count 3", exact=True)).to_be_visible()
    assert not log.evaluate("log => log.textContent.includes('xxx')")
    page.get_by_role("button", name="1 line before this not shown · show").click()
    expect(log.get_by_text("more characters; download the log")).to_have_count(1)
    assert log.evaluate("log => log.textContent.length") < 20_000

    # Scrolling up turns following off.
    def scroll_up() -> bool:
        # A new line before the browser's scroll event scrolls the log down again.
        log.evaluate("log => { log.scrollTop = 0; }")
        return not page.get_by_label("follow").is_checked()

    assert eventually(scroll_up)
    page.locator("summary", has_text="Download").click()
    with page.expect_download() as download:
        page.locator("a[href*='/logs/download']").first.click()
    assert download.value.path().stat().st_size > 1_000_000
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("dialog")).to_contain_text("nothing that they wrote is kept")
    page.get_by_role("button", name="Go back").click()
    expect(page.locator("#head")).to_contain_text("Running")
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    expect(page.locator("#head")).to_contain_text("Stopped", timeout=TRAINED)
    expect(page.locator("#head")).to_contain_text("Stopped by alice")


def test_errors_stand_beside_their_fields_and_the_first_has_the_focus(page: Page) -> None:
    page.goto("/clusters/new")
    # The command is that of the only program, until somebody types one.
    command = page.get_by_label("Command", exact=True)
    page.locator("summary", has_text="Git repository").click()
    page.get_by_role("button", name="Write a file").click()
    expect(command).to_have_value("python train.py")
    page.get_by_label("Name of the file").fill("main.py")
    page.get_by_label("Name of the file").blur()
    expect(command).to_have_value("python main.py")
    page.get_by_label("Name", exact=True).fill("Not A Name")
    command.fill("echo kept")
    page.get_by_role("button", name="Remove main.py").click()
    expect(command).to_have_value("echo kept")
    page.get_by_label("Environment variables").fill("NO_EQUALS")
    page.get_by_role("button", name="Create cluster").click()
    name = page.get_by_label("Name", exact=True)
    expect(name).to_be_focused()
    expect(name).to_have_value("Not A Name")
    expect(page.locator(".field-wrong", has=name)).to_contain_text("lower-case letters")
    expect(page.locator(".field-wrong").nth(1)).to_contain_text("has no '='")
    summary = page.locator("#preview .wrong")
    expect(summary).to_contain_text("Name")
    expect(summary).not_to_have_text(re.compile("lower-case letters"), use_inner_text=True)
    summary.get_by_role("link", name="Environment variables").click()
    expect(page).to_have_url(re.compile("#id_env$"))
    expect(page.get_by_label("Command", exact=True)).to_have_value("echo kept")


def test_everything_can_be_done_by_keyboard(page: Page) -> None:
    def tab_to(locator: Locator) -> None:
        for _ in range(80):
            if locator.evaluate("element => element === document.activeElement"):
                return
            page.keyboard.press("Tab")
        pytest.fail(f"{locator} cannot be reached by Tab")

    page.goto("/clusters/new")
    tab_to(page.get_by_label("Name", exact=True))
    page.keyboard.type("by-keys")
    tab_to(page.get_by_label("Command", exact=True))
    page.keyboard.type("sleep 600")
    tab_to(page.get_by_role("button", name="Create cluster"))
    page.keyboard.press("Enter")
    page.wait_for_url("**/clusters/ops-demo/by-keys")
    page.goto("/clusters")
    search = page.get_by_role("searchbox", name="Search clusters")
    tab_to(search)
    page.keyboard.type("by-keys")
    page.wait_for_url("**/clusters?search=by-keys*")
    expect(page.locator("#rows tbody tr")).to_have_count(1)
    expect(row(page, "by-keys")).to_contain_text("Running", timeout=TRAINED)
    tab_to(page.get_by_label("Actions for by-keys"))
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    tab_to(dialog.get_by_role("button", name="Stop"))
    page.keyboard.press("Enter")
    expect(row(page, "by-keys")).to_contain_text("Stopped", timeout=TRAINED)


def test_a_telephone_shows_every_page_without_scrolling_sideways(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    tabs = ("", "/logs", "/metrics", "/usage", "/runs", "/events", "/manifest")
    for address in ("/", "/clusters/new", "/clusters/import", *(f"/clusters/ops-demo/show1{tab}" for tab in tabs)):
        page.goto(address)
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, address


def test_a_folder_is_uploaded_whole_although_the_connection_breaks(
    browser: Browser, portal_up: Any, tmp_path: Path
) -> None:
    """Uploads 2,000 small files and downloads them as one archive."""
    files = {f"{n % 7}/{n}.txt": f"{n}\n".encode() * (n % 50) for n in range(2000)}
    for name, data in files.items():
        (tmp_path / "digits" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "digits" / name).write_bytes(data)
    sent: list[str] = []

    def break_some(route: Route) -> None:
        """Every third request fails: connection reset or portal unavailable. One batch is refused and then sent file by file."""
        sent.append(route.request.url)
        match len(sent) % 6 if len(sent) < 12 else 4:
            case 0:
                route.abort("connectionreset")
            case 3:
                route.fulfill(status=422 if len(sent) == 3 else 503, body="{}")
            case _:
                route.continue_()

    with signed_in(browser, portal_up, "alice", expected=("Failed to load resource",)) as page:
        page.goto("/datastores/ops-demo/demo-output?folder=uploads")
        page.route("**/datastores/demo-output/files", break_some)
        page.locator("input[webkitdirectory]").set_input_files(tmp_path / "digits")
        expect(page.locator(".uploads-sum")).to_contain_text("2,000 of 2,000 files stored", timeout=240_000)
        assert len(sent) < 40
        expect(page.locator(".uploads .is-wrong")).to_have_count(0)
        page.get_by_role("link", name="digits/", exact=True).click()
        assert_fits(page)
        page.check("[data-pick-all]")
        expect(page.get_by_role("button", name="Download chosen")).to_be_visible()
        page.get_by_label("More actions").click()
        with page.expect_download() as download:
            page.get_by_role("link", name="Download this folder as .zip").click()
        with zipfile.ZipFile(download.value.path()) as found:
            assert {name.removeprefix("digits/"): found.read(name) for name in found.namelist()} == files


def test_a_large_file_goes_on_where_the_browser_was_closed(browser: Browser, portal_up: Any, tmp_path: Path) -> None:
    """Five parts; the third never arrives, and the browser is closed."""
    large = tmp_path / "weights.bin"
    large.write_bytes(os.urandom(2**20) * 36)
    sent: list[str] = []

    def of_part(url: str) -> str:
        """Matches uploads of a part, directly to the store or through the portal."""
        found = re.search(r"[?&]part(?:Number)?=([0-9]+)", url)
        return found[1] if found and "large/weights.bin?" in url else ""

    def note(route: Route) -> None:
        sent.append(of_part(route.request.url))
        route.continue_()

    page_of = "/datastores/ops-demo/demo-output?folder=large"
    with signed_in(
        browser, portal_up, "alice", expected=("Failed to load resource", "Access to XMLHttpRequest")
    ) as page:
        page.goto(page_of)
        page.route(lambda url: of_part(url) == "3", lambda route: route.abort("connectionreset"))
        page.locator("input[name=files]").set_input_files(large)
        expect(page.locator(".uploads .said")).to_have_text("is sent again", timeout=60_000)
        page.once("dialog", lambda dialog: dialog.accept())
        page.goto(page_of)
        expect(page.get_by_text("1 upload not finished")).to_be_visible()
        page.unroute_all()
        page.route(lambda url: bool(of_part(url)), note)
        page.locator("input[name=files]").set_input_files(large)
        page.get_by_role("link", name="weights.bin", exact=True).click(timeout=60_000)
        assert sent == ["3", "4", "5"]
        with page.expect_download() as download:
            page.get_by_role("link", name="Download", exact=True).click()
        assert download.value.path().read_bytes() == large.read_bytes()
        page.goto(page_of)
        expect(page.get_by_text("not finished")).to_have_count(0)


def test_a_parquet_file_shows_its_first_rows_and_a_damaged_one_what_is_wrong(
    browser: Browser, portal_up: Any, tmp_path: Path
) -> None:
    """The preview runs in a web worker without network access, so a malicious file can do no harm."""
    rows = {"id": [*range(300)], "said": ["<b>hello</b>"] * 300, "raw": [bytes([255, 0, n % 256]) for n in range(300)]}
    for packing in ("snappy", "zstd", "lz4"):
        pq.write_table(pa.table(rows), tmp_path / f"{packing}.parquet", compression=packing)
    whole = (tmp_path / "zstd.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[len(whole) // 2 :])
    # Far larger uncompressed than stored.
    pq.write_table(
        pa.table({"z": ["a" * 10**6] * 300}), tmp_path / "bomb.parquet", compression="zstd", use_dictionary=False
    )
    with signed_in(
        browser, portal_up, "alice", expected=("Failed to load resource", "Content Security Policy")
    ) as page:
        page.goto("/datastores/ops-demo/demo-output?folder=tables")
        page.locator("input[name=files]").set_input_files(sorted(tmp_path.glob("*.parquet")))
        page.get_by_role("link", name="zstd.parquet").wait_for(timeout=60_000)
        table = page.locator("#parquet table")
        for packing in ("snappy", "zstd", "lz4"):
            page.goto(f"/datastores/ops-demo/demo-output/preview?path=tables/{packing}.parquet")
            expect(page.locator("#parquet")).to_contain_text("300 rows; the first 100 are shown.", timeout=30_000)
            expect(table.locator("th")).to_have_text(["idint64", "saidstring", "rawbyte_array"])
            expect(table.locator("tbody tr").nth(1).locator("td")).to_have_text(["1", "<b>hello</b>", "3 bytes"])
        for name, said in (("cut", "cannot be read"), ("bomb", "Not read, because they are large: z (string).")):
            page.goto(f"/datastores/ops-demo/demo-output/preview?path=tables/{name}.parquet")
            expect(page.locator("#parquet")).to_contain_text(said, timeout=30_000)
        asked = "async () => (await fetch('/datastores/parquet.js')).headers.get('Content-Security-Policy')"
        assert page.evaluate(asked) == "default-src 'none'; script-src 'self'"
