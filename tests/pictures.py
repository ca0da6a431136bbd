"""`make pictures`: makes all pictures of README and of Help, and tells what the first hour costs in clicks and in waiting.

It starts a portal of its own and goes through the steps of Help in Chromium as bob, who has done nothing there before. Every
picture is of a page as it is then, cut to what the step is about.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image
from playwright.sync_api import BrowserContext, FilePayload, Locator, Page, expect

from tests.browser import chromium
from tests.running import ROOT, Client, Portal, eventually

FOLDER = ROOT / "static" / "portal" / "pictures"
# Those of Help are of one size, which its page gives to the browser before they are there.
STEP, README = (1016, 640), (1280, 800)
# Lossy beyond this is seen at thin letters.
QUALITY = 82
LONG = 240_000
TRAIN = """import math

for step in range(1, 61):
    loss = math.exp(-step / 20) + 0.05 * math.sin(step)
    print(f"step {step}: loss={loss:.4f}, accuracy={1 - loss / 2:.4f}")
"""
CELL = """import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

x, y = load_digits(return_X_y=True)
model = KNeighborsClassifier().fit(x[:1500], y[:1500])
print("accuracy", round(model.score(x[1500:], y[1500:]), 4))
figure, places = plt.subplots(1, 6, figsize=(6, 1.4))
for place, image, digit in zip(places, x[1500:], model.predict(x[1500:])):
    place.imshow(image.reshape(8, 8), cmap="gray_r")
    place.set_title(digit)
    place.axis("off")"""
DATA = {"train.csv": 4_200_000, "validation.csv": 610_000, "labels.json": 2_300, "README.md": 480}


@dataclass
class Walk:
    """A newcomer at a page: what they press and type, and how long they wait for something to appear. `now` and `told` are
    clicks, fields and seconds, of this step and of each."""

    page: Page
    told: dict[str, list[float]] = field(default_factory=dict)
    now: list[float] = field(default_factory=list)

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        self.now = self.told[name] = [0, 0, 0]
        yield

    def press(self, target: Locator) -> None:
        self.now[0] += 1
        target.click()

    def type(self, label: str, text: str) -> None:
        self.now[1] += 1
        self.page.get_by_label(label, exact=True).first.fill(text)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.now[2] += time.monotonic() - began

    def link(self, name: str) -> Locator:
        return self.page.get_by_role("link", name=name, exact=True).first

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True).first

    def report(self) -> str:
        lines = [f"{'step':<22}{'clicks':>7}{'fields':>7}{'waiting':>10}"]
        rows = {**self.told, "in all": [sum(each) for each in zip(*self.told.values(), strict=True)]}
        lines += [f"{name:<22}{row[0]:>7.0f}{row[1]:>7.0f}{row[2]:>8.1f} s" for name, row in rows.items()]
        return "\n".join(lines)


def take(page: Page, name: str, size: tuple[int, int], *, top: Locator | None = None) -> None:
    """Saves what a window of this size shows, of the content from `top` on, or of the whole page."""
    if top is None:
        page.set_viewport_size({"width": size[0], "height": size[1]})
        _settle(page)
        png = page.screenshot(animations="disabled")
    else:
        _settle(page)
        page.evaluate("scrollTo({top: 0, behavior: 'instant'})")
        box = top.bounding_box()
        assert box, f"{name}: what it shows is not there"
        clip = {"x": box["x"] - 16, "y": box["y"] - 16, "width": size[0], "height": size[1]}
        png = page.screenshot(animations="disabled", full_page=True, clip=clip)  # type: ignore[arg-type]
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    picture.save(FOLDER / f"{name}.webp", quality=QUALITY, method=6)


def _settle(page: Page) -> None:
    """Fonts, and the fragments that a page loads after itself."""
    page.wait_for_load_state("networkidle")
    page.evaluate("document.fonts.ready")


def first_hour(context: BrowserContext, portal: Portal) -> Walk:
    page = context.new_page()
    walk, head = Walk(page), page.locator("#head")
    page.goto(portal.origin)
    with walk.step("sign in"):
        page.fill("#id_login", "bob")
        page.fill("#id_password", portal.credentials["users"]["bob"]["password"])
        walk.now[1] = 2
        walk.press(walk.button("Sign in"))
    content = page.locator("main .page")
    with walk.step("run an example"):
        walk.press(walk.link("New cluster"))
        expect(page.locator("#preview")).to_contain_text("Per hour")
        take(page, "example", STEP, top=page.locator("main .page-head"))
        walk.press(walk.button("Run Hello GPU"))
        with walk.waiting():
            page.wait_for_url("**/clusters/ops-demo/hello-gpu*")
            expect(head).to_contain_text("Running", timeout=LONG)
    with walk.step("look at a result"):
        with walk.waiting():
            expect(head).to_contain_text("Succeeded", timeout=LONG)
        page.reload()
        take(page, "result", STEP, top=content)
        walk.press(page.locator("nav.tabs").get_by_role("link", name="Metrics"))
        chart = page.locator(".chart", has_text="loss").first
        expect(chart.locator(".u-over")).to_be_visible()
        chart.locator(".u-over").hover(position={"x": 220, "y": 90})
        take(page, "metrics", STEP, top=content)
    with walk.step("open a notebook"):
        walk.press(walk.link("GPU cloud"))
        walk.press(walk.button("My notebook"))
        walk.press(walk.button("Deploy"))
        with walk.waiting():
            expect(head).to_contain_text("Running", timeout=LONG)
            expect(walk.link("Open ▸")).to_be_visible(timeout=LONG)
        with context.expect_page() as opened:
            walk.press(walk.link("Open ▸"))
        with walk.waiting():
            notebook(opened.value)
        opened.value.close()
    with walk.step("run your own program"):
        write_program(walk)
        walk.press(walk.button("Create cluster"))
        with walk.waiting():
            page.wait_for_url("**/clusters/ops-demo/my-program")
            expect(head).to_contain_text("Succeeded", timeout=LONG)
    with walk.step("bring your data"):
        walk.press(walk.link("Datastores"))
        walk.press(walk.link("storage"))
        walk.type("Folder to store into", "my-data")
        files: list[FilePayload] = [
            {"name": name, "mimeType": "text/plain", "buffer": b"0" * size} for name, size in DATA.items()
        ]
        with walk.waiting():
            page.locator("#upload input[name=files]").set_input_files(files)
            expect(page.locator("#files")).to_contain_text("my-data", timeout=LONG)
        walk.now[0] += 1
        walk.press(page.locator("#files").get_by_role("link", name="my-data"))
        expect(page.locator("#files")).to_contain_text("validation.csv", timeout=LONG)
        take(page, "data", STEP, top=content)
        walk.press(walk.link("GPU cloud"))
        walk.press(walk.link("New cluster"))
        walk.type("Name", "reads-my-data")
        walk.type("Command", "ls -l /elearn/input/my-data")
        page.locator("select[name=input]").select_option("storage")
        walk.now[1] += 1
        walk.press(walk.button("Create cluster"))
        with walk.waiting():
            page.wait_for_url("**/clusters/ops-demo/reads-my-data")
            expect(head).to_contain_text("Succeeded", timeout=LONG)
    return walk


def write_program(walk: Walk) -> None:
    page = walk.page
    walk.press(walk.link("GPU cloud"))
    walk.press(walk.link("New cluster"))
    walk.type("Name", "my-program")
    walk.type("Command", "python train.py")
    walk.press(page.locator("summary", has_text="Git repository"))
    walk.press(walk.button("Write a file"))
    written = page.locator(".drop-files details").last
    written.locator("textarea").fill(TRAIN)
    walk.now[1] += 1
    expect(page.locator("#preview")).to_contain_text("Starts now", timeout=LONG)
    take(page, "program", STEP, top=page.locator("label[for=id_command]"))


def notebook(page: Page) -> None:
    """JupyterLab: a notebook from its launcher, and one cell that trains."""
    page.set_viewport_size({"width": STEP[0], "height": STEP[1]})
    page.locator(".jp-LauncherCard", has_text="Python (environment)").first.click(timeout=LONG)
    # What is run before the kernel is there, is lost.
    kernel = page.locator(".jp-StatusBar-Left")
    expect(kernel).to_contain_text("| Idle", timeout=LONG)
    cell = page.locator(".jp-Notebook .jp-CodeCell .cm-content").first
    cell.click(timeout=LONG)
    page.keyboard.insert_text(CELL)
    page.keyboard.press("Shift+Enter")
    expect(page.locator(".jp-OutputArea img")).to_be_visible(timeout=LONG)
    expect(kernel).to_contain_text("| Idle", timeout=LONG)
    take(page, "notebook", STEP)


RATES = {"slow": "0.003", "baseline": "0.01", "fast": "0.03"}
ONE = {"image": "tensorflow-2-21", "roles": {"master": {"flavor": "middle-1-gpu"}}}


def readme(context: BrowserContext, portal: Portal) -> None:
    """Home with something of each kind, the form filled in, and runs side by side."""
    alice, page = Client(portal, "alice"), context.new_page()
    page.goto(portal.origin)
    page.fill("#id_login", "alice")
    page.fill("#id_password", portal.credentials["users"]["alice"]["password"])
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Home", exact=True).wait_for()
    train = 'python digits_single.py --sample --output /elearn/output --steps 600 --learning-rate "$RATE"'
    for name, rate in RATES.items():
        path = alice.create("ops-demo", name, **ONE, command=train, output="demo-output", env={"RATE": rate})
        ended(alice, path)
    runs = ",".join(f"{name}/1" for name in RATES)
    page.goto(f"{portal.origin}/appcodes/ops-demo/compare?runs={runs}")
    assert eventually(lambda: has_numbers(page), LONG / 1000)
    take(page, "compare", (README[0], 1140))
    page.goto(f"{portal.origin}/clusters/new?start=parameter-servers&appcode=ops-demo")
    expect(page.locator("#preview")).to_contain_text("Starts now", timeout=LONG)
    take(page, "new-cluster", README)
    sweep = {
        "template": {**ONE, "command": train.replace('"$RATE"', "{lr}"), "output": "demo-output"},
        "parameters": {"lr": {"type": "float", "low": 0.001, "high": 0.1, "log": True}},
        "goal": {"metric": "loss", "direction": "minimize"}, "trials": 6, "parallel": 1,
    }  # fmt: skip
    post(alice, "sweeps", "learning-rate", sweep)
    step = {"name": "prepare", "spec": {**ONE, "command": "seq 100"}}
    pipeline = {"stages": [step, {"name": "train", "after": ["prepare"], "spec": {**ONE, "command": "seq 100"}}]}
    post(alice, "pipelines", "nightly", pipeline)
    alice.create("ops-demo", "typo", **ONE, command="python trian.py")
    alice.call("POST", "/appcodes/ops-demo/pipelines/nightly/run")
    alice.create(
        "ops-demo", "digits", **ONE, command=train.replace("600", "20000"), output="demo-output", env={"RATE": "0.01"}
    )
    page.goto(portal.origin)
    expect(page.locator("tr", has_text="digits").first).to_contain_text("Running", timeout=LONG)
    take(page, "home", README)


def has_numbers(page: Page) -> bool:
    """Whether all are there: they are read a moment after a run has ended."""
    page.reload()
    expect(page.locator(".chart .u-over").first).to_be_visible(timeout=LONG)
    return "–" not in page.locator("table", has_text="best @ step").first.inner_text()


def post(client: Client, kind: str, name: str, spec: object) -> None:
    manifest = {"kind": kind.removesuffix("s"), "metadata": {"name": name, "appcode": "ops-demo"}, "spec": spec}
    client.call("POST", f"/appcodes/ops-demo/{kind}", manifest)


def ended(client: Client, path: str) -> None:
    assert eventually(lambda: client.call("GET", path)["status"]["phase"] == "Succeeded", LONG / 1000), path


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    # Its width leaves STEP's to the content.
    options = {"viewport": {"width": 1240, "height": 900}, "color_scheme": "light", "timezone_id": "UTC"}
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        portal = Portal(Path(folder) / "data")
        portal.start()
        try:
            portal.end_show1()
            with browser.new_context(**options) as context:  # type: ignore[arg-type]
                walk = first_hour(context, portal)
            with browser.new_context(**options) as context:  # type: ignore[arg-type]
                readme(context, portal)
        finally:
            portal.stop()
    print(walk.report())
    for path in sorted(FOLDER.glob("*.webp")):
        print(f"{path.name:<22}{path.stat().st_size / 1024:>7.0f} KiB")


if __name__ == "__main__":
    main()
