"""The daemon's page, a report and a page of samples in a headless Chromium, with a real daemon and trainer.

Skipped without Chromium.
FOREBAY_SCREENSHOTS names a folder for screenshots of the page.
"""

import json
import os
import re
import time
from pathlib import Path

import chromium
import forebay
import numpy
import pytest
from support import run_program

pytestmark = pytest.mark.skipif(
    chromium.find() is None, reason="no Chromium for the page (Debian: apt-get install chromium)"
)

HOSTILE = "<img src=x onerror=document.title='owned'>.npy"
DRAWN = "document.querySelector('#%s .line').getAttribute('d').split('L').length"
NOT_IN_FORCE = "document.querySelectorAll('#quiet .missed').length"


@pytest.fixture
def folder(tmp_path):
    """40 arrays, and a broken one whose name would be markup."""
    for sample in range(40):
        numpy.save(tmp_path / f"{sample:03}.npy", numpy.full((3, 5), sample, numpy.float32))
    (tmp_path / HOSTILE).write_bytes(b"no array")
    return tmp_path


@pytest.fixture
def loader(folder):
    config = {
        "dataset": {"format": "npy", "path": str(folder)},
        "batch": {"size": 4},
        "stage": [{"name": "work", "operations": [{"op": "delay", "milliseconds": 2}]}],
        "errors": {"on_bad_sample": "substitute", "budget": 1},
        "listen": {"metrics": "127.0.0.1:0"},
    }
    with forebay.Loader(config) as loader:
        yield loader


@pytest.fixture
def browser(tmp_path_factory):
    with chromium.Chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def text_of(browser, selector):
    return browser.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")


def open_page(browser, loader):
    browser.open(f"http://{loader.stats()['metrics']}/")
    browser.wait_for("document.getElementById('state')?.className === 'live'")


def write_page(page, *command):
    done = run_program(*command, page)
    assert done.returncode == 0, done.stderr


def names_in_the_pipeline(browser):
    return browser.evaluate("[...document.querySelectorAll('#pipeline .name')].map((name) => name.innerText)")


def keep_looks(browser, name):
    """Keeps a picture of a wide and a narrow window, light and dark; nothing sticks out to the side."""
    for width, height in ((1280, 800), (390, 844)):
        for scheme in ("light", "dark"):
            browser.look(width, height, scheme)
            assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
            keep(browser, f"{name}-{width}-{scheme}")


def keep(browser, name):
    picture = browser.screenshot()
    assert picture.startswith(b"\x89PNG") and len(picture) > 5_000
    if folder := os.environ.get("FOREBAY_SCREENSHOTS"):
        (Path(folder) / f"{name}.png").write_bytes(picture)


def test_the_page_draws_a_running_daemon(browser, loader):
    browser.look(1280, 800)
    open_page(browser, loader)
    for _ in range(3):
        for _ in loader:
            pass
    browser.wait_for("document.querySelector('#bad .reason') !== null")
    browser.wait_for(f"{DRAWN % 'samples'} > 1")
    assert text_of(browser, "#streams button") == "dict"
    assert len(text_of(browser, "#line")) > 10
    assert names_in_the_pipeline(browser) == ["fetch", "work", "trainer"]
    assert browser.evaluate("document.querySelectorAll('#rings .slots .slot').length") == 8
    # A name of a file is text: nothing of it was made an element, and nothing ran.
    assert HOSTILE in text_of(browser, "#bad")
    assert browser.evaluate("document.querySelectorAll('main img, main script').length") == 0
    assert browser.evaluate("document.title") == "dict · Forebay"
    missed = [item for item in loader.stats()["quiet"] if not item["in_force"]]
    assert browser.evaluate(NOT_IN_FORCE) == len(missed)
    assert browser.evaluate("document.getElementById('datasets-card').hidden")
    for scheme in ("light", "dark"):
        browser.look(1280, 800, scheme)
        ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(13, 17, 23)") == (scheme == "dark")
    keep_looks(browser, "page")
    assert browser.errors == []


def test_the_page_has_the_rows_of_each_dataset_of_a_mixture(browser, tmp_path):
    for name, count in (("web", 30), ("books", 10)):
        (tmp_path / name).mkdir()
        for sample in range(count):
            numpy.save(tmp_path / name / f"{sample:03}.npy", numpy.zeros(3, numpy.float32))
    config = {
        "dataset": [{"name": name, "format": "npy", "path": str(tmp_path / name)} for name in ("web", "books")],
        "batch": {"size": 40},
        "order": {"epochs": 2},
        "stage": [{"name": "copy", "operations": []}],
        "listen": {"metrics": "127.0.0.1:0"},
    }
    with forebay.Loader(config) as loader:
        for _ in range(2):
            for _ in loader:
                pass
        open_page(browser, loader)
        lines = text_of(browser, "#datasets").split("\n")
        assert [line for line in lines if line] == ["web", "60 rows, 75 %", "books", "20 rows, 25 %"]
        assert browser.errors == []


def test_the_page_asks_nothing_while_nobody_looks_and_says_when_no_answer_comes(browser, loader):
    open_page(browser, loader)
    asked = "performance.getEntriesByName(new URL('/stats.json', location).href).length"
    browser.wait_for(f"{asked} >= 3")
    hide = "Object.defineProperty(document, 'hidden', { value: %s, configurable: true })"
    browser.evaluate(f"{hide % 'true'}; document.dispatchEvent(new Event('visibilitychange'))")
    # One may be under way.
    wait = "new Promise((done) => setTimeout(() => done(%s), 1500))"
    before = browser.evaluate(wait % asked)
    assert browser.evaluate(wait % asked) == before
    browser.evaluate(f"{hide % 'false'}; document.dispatchEvent(new Event('visibilitychange'))")
    browser.wait_for(f"{asked} > {before}")
    loader.close()
    browser.wait_for("document.getElementById('state').className === 'lost'")
    assert text_of(browser, "#state").startswith("no answer for ")


def test_the_browser_runs_and_loads_nothing_from_elsewhere_in_it(browser, loader):
    open_page(browser, loader)
    blocked = browser.evaluate("""new Promise((done) => {
        const blocked = [];
        document.addEventListener("securitypolicyviolation", (event) => {
            blocked.push(event.effectiveDirective);
            if (blocked.length === 3) done(blocked.sort());
        });
        const script = document.createElement("script");
        script.textContent = "document.title = 'owned'";
        document.body.append(script);
        const image = document.createElement("img");
        image.src = "http://127.0.0.2/x.png";
        document.body.append(image);
        fetch("http://127.0.0.2/").catch(() => null);
    })""")
    assert blocked == ["connect-src", "img-src", "script-src-elem"]
    assert browser.evaluate("document.title") != "owned"


def test_a_page_of_samples_draws_pictures_and_their_files(browser, tmp_path_factory):
    image = pytest.importorskip("PIL.Image")
    data = tmp_path_factory.mktemp("classes")
    for number in range(6):
        folder = data / ("<b>bird", "whale")[number // 3]
        folder.mkdir(exist_ok=True)
        image.new("RGB", (300, 200), (250, 10, 40 * number)).save(folder / f"{number}.png")
    page = tmp_path_factory.mktemp("show") / "out.html"
    config = page.parent / "train.toml"
    config.write_text(f'preset = "imagenet-train"\ndataset.path = "{data}"\nbatch.size = 4\n')
    write_page(page, "show", config, "--output")
    browser.open(page.as_uri())
    browser.wait_for("document.querySelectorAll('.before canvas').length === 6")
    assert browser.evaluate("document.querySelectorAll('.sample canvas').length") == 12
    names = browser.evaluate("[...document.querySelectorAll('.sample b')].map((name) => name.innerText)")
    assert sorted(names) == ["<b>bird"] * 3 + ["whale"] * 3
    # The crop and the file have the file's one colour.
    pixel = (
        "[...document.querySelectorAll('.sample')].map((card) => [...card.querySelectorAll('canvas')].map((canvas) => "
    )
    pixel += "[...canvas.getContext('2d').getImageData(5, 5, 1, 1).data].join()))"
    for crop, file in browser.evaluate(pixel):
        assert crop == file and crop.startswith("250,10,")
    keep_looks(browser, "samples")
    assert browser.errors == []


SHARED = """
[[stage]]
name = "all"
operations = [
  { op = "decode-image", field = "image" }, MASK
  { op = "random-horizontal-flip", probability = 1.0, fields = FIELDS },
  { op = "center-crop", size = [320, 440], fields = FIELDS },
]
[batch]
size = 2
"""


@pytest.mark.parametrize("what", ["boxes", "mask"])
def test_boxes_and_masks_lie_where_operations_left_what_they_are_of(browser, tmp_path, what):
    """A red and a green rectangle, mirrored and cut out."""
    image = pytest.importorskip("PIL.Image")
    pixels, mask = numpy.full((360, 480, 3), 90, numpy.uint8), numpy.zeros((360, 480), numpy.uint8)
    rectangles = [(40, 60, 160, 120, (250, 10, 10)), (260, 240, 100, 60, (10, 250, 10))]
    for number, (x, y, width, height, colour) in enumerate(rectangles):
        pixels[y : y + height, x : x + width] = colour
        mask[y : y + height, x : x + width] = number + 1
    image.fromarray(pixels).save(tmp_path / "picture.png")
    image.fromarray(mask).save(tmp_path / "mask.png")
    if what == "boxes":
        boxes = [{"bbox": box[:4], "area": box[2] * box[3], "iscrowd": 0} for box in rectangles]
        listed = {
            "images": [{"id": 1, "file_name": "picture.png", "width": 480, "height": 360}],
            "annotations": [{"id": n, "image_id": 1, "category_id": n, **box} for n, box in enumerate(boxes)],
            "categories": [{"id": 0, "name": "cat"}, {"id": 1, "name": "<b>dog"}],
        }
        (tmp_path / "all.json").write_text(json.dumps(listed))
        source, fields, more = 'path = "all.json"\nformat = "coco"', ["image", "boxes", "labels"], ""
    else:
        (tmp_path / "all.csv").write_text("image,mask\npicture.png,mask.png\n")
        columns = "".join(f'{name} = {{ from = "{name}", as = "image" }}\n' for name in ("image", "mask"))
        source = f'path = "all.csv"\nformat = "manifest"\n[dataset.fields]\n{columns}'
        fields, more = ["image", "mask"], '{ op = "decode-image", field = "mask", channels = 1 },'
    config = tmp_path / "train.toml"
    shared = SHARED.replace("MASK", more).replace("FIELDS", json.dumps(fields))
    config.write_text(f"[dataset]\n{source}\n{shared}")
    page = tmp_path / "out.html"
    write_page(page, "show", config, "--output")
    browser.open(page.as_uri())
    browser.wait_for("document.querySelectorAll('.sample canvas').length >= 1")

    def pixel(canvas, x, y):
        place = f"document.querySelectorAll('.sample canvas')[{canvas}].getContext('2d').getImageData({x}, {y}, 1, 1)"
        return browser.evaluate(f"[...{place}.data].slice(0, 3)")

    # Mirrored, then 20 pixels of each side are cut away.
    for (x, y, width, height, colour), of_class in zip(rectangles, [(255, 64, 64), (34, 101, 249)]):
        left, top = 480 - x - width - 20, y - 20
        middle = (left + width // 2, top + height // 2)
        assert pixel(0, *middle) == list(colour)
        if what == "boxes":
            for place in [(left, middle[1]), (left + width, middle[1]), (middle[0], top), (middle[0], top + height)]:
                found = pixel(0, *place)
                assert all(abs(one - other) < 40 for one, other in zip(found, of_class)), (place, found)
            # Its name is above it, on the colour of its class.
            assert pixel(0, left + 2, top - 8) == list(of_class)
        else:
            # Class 1 or 2 over it, and nothing beside it.
            assert pixel(1, *middle) != list(colour)
            assert pixel(1, left + 2, top + 2) == pixel(1, *middle)
            assert pixel(1, left - 6, top + 6) == [90, 90, 90]
    if what == "boxes":
        texts = browser.evaluate("[...document.querySelectorAll('.sample dd')].map((text) => text.innerText)")
        assert "cat, <b>dog" in texts, texts
    if what == "mask":
        captions = browser.evaluate("[...document.querySelectorAll('.sample figcaption')].map((c) => c.innerText)")
        assert captions[:2] == ["image, 440 × 320", "mask over image, 440 × 320"]
        tints = [pixel(1, 480 - x - width // 2 - 20, y + height // 2 - 20) for x, y, width, height, _ in rectangles]
        assert tints[0] != tints[1]
    keep(browser, f"samples-{what}")
    assert browser.errors == []


def test_a_report_draws_its_run(browser, folder, tmp_path_factory):
    page = tmp_path_factory.mktemp("report") / "out.html"
    config = page.with_name("train<b>.toml")
    (folder / HOSTILE).unlink()
    config.write_text(
        f'dataset = {{ format = "npy", path = "{folder}" }}\nbatch.size = 4\norder.epochs = 1\n'
        '[[stage]]\nname = "work"\noperations = [{ op = "delay", milliseconds = 50 }]\n'
    )
    write_page(page, "bench", config, "--report")
    for width, scheme in ((1280, "light"), (390, "dark")):
        browser.look(width, 844, scheme)
        browser.open(page.as_uri())
        browser.wait_for("document.querySelector('.facts') !== null")
        assert browser.evaluate("document.title") == "forebay bench: train<b>"
        assert names_in_the_pipeline(browser) == ["fetch", "work", "trainer"]
        lines = browser.evaluate("[...document.querySelectorAll('.plot .line')].map((line) => line.getAttribute('d'))")
        assert len(lines) == 5
        assert all(lines)
        # All tasks of a stage are in the bars of its histogram.
        bars = "[...document.querySelectorAll('.bar.tone-1 title')].map((title) => parseInt(title.textContent))"
        assert sum(browser.evaluate(bars)) == 40
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
        # One waiting time, whoever says it.
        waited = "document.querySelector('.tiles p:nth-child(2) b').innerText"
        waits = browser.evaluate(waited)
        assert f"waits {waits}" in text_of(browser, "#pipeline .trainer")
        assert f"waits {waits}" in text_of(browser, "#sentence")
        assert waits in browser.evaluate(
            "[...document.querySelectorAll('.chart .now span')].map((one) => one.innerText)"
        )
        assert not browser.evaluate("document.querySelector('details').open")
        assert "`" not in text_of(browser, "body")
        keep(browser, f"report-{width}-{scheme}")
    assert browser.evaluate("performance.getEntriesByType('resource').length") == 0
    assert browser.errors == []


def test_a_plot_is_full_when_it_is_opened_and_is_read_by_keys(browser, loader):
    end = time.monotonic() + 4
    while time.monotonic() < end:
        for _ in loader:
            pass
    open_page(browser, loader)
    for chart in ("samples", "batches", "waits"):
        assert browser.evaluate(DRAWN % chart) >= 3
    # Of the hour ten seconds are a point; the day has no whole minute yet.
    for number, points in ((1, 1), (2, 1)):
        browser.evaluate(f"document.querySelectorAll('#ranges button')[{number}].click()")
        assert browser.evaluate(DRAWN % "samples") <= points + 1
        assert text_of(browser, "#samples .times").startswith(("1 h ago", "1 day ago"))
    browser.evaluate("document.querySelector('#ranges button').click()")
    press = "document.querySelector('#samples .plot').dispatchEvent(new KeyboardEvent('keydown', { key: '%s' }))"
    reading = "document.querySelector('#samples .reading').textContent"
    assert browser.evaluate(reading) == ""
    browser.evaluate(f"{press % 'End'}; {press % 'ArrowLeft'}")
    assert browser.evaluate(reading).endswith(" ago")
    assert " a second, " in browser.evaluate("document.querySelector('#samples .plot').ariaValueText")
    assert browser.errors == []


def test_the_verdict_and_the_cards_say_the_same(browser, loader):
    """Also while the trainer changes its pace."""
    open_page(browser, loader)
    said = set()
    for pause in (0, 0, 0.01, 0.02, 0.04):
        for _ in loader:
            time.sleep(pause)
        text = browser.evaluate("""[
            document.getElementById("sentence").innerText,
            document.querySelector("#waits .now span").innerText,
            document.querySelector("#pipeline .trainer").innerText,
            document.getElementById("window").innerText,
            document.querySelector("#waits .now small").innerText,
        ]""")
        sentence, waits, trainer, window, unit = text
        if found := re.search(r"wait(?:s|ed for data) (\d+) %", sentence):
            assert waits == f"{found[1]} %", text
            assert f"waits {found[1]} %" in trainer, text
            assert unit == f"of the time, {window}", text
            said.add(found[1])
    assert said


def test_the_history_is_put_together_piece_by_piece(browser, loader):
    open_page(browser, loader)
    found = browser.evaluate("""(async () => {
        const { History, RANGES } = await import("/metrics.js");
        const history = new History();
        const steps = (first, values) => ({ first, samples: values, batches: values, waited: values.map(() => null) });
        const piece = (pid, uptime, first, values) => history.add({
            pid, uptime_seconds: uptime,
            streams: [{ name: "train", seconds: steps(first, values), minutes: steps(0, []) }],
        });
        const taken = [piece(1, 4, 1, [1, 2, 3]), piece(1, 6, 4, [4, 5]), piece(1, 7, 5, [50, 6])];
        const all = history.points("train", "samples", RANGES[0]);
        const waits = history.points("train", "waited", RANGES[0]).points;
        const joined = history.points("train", "samples", RANGES[1]);
        // A daemon that was started again is asked for all of it.
        const again = [history.since, piece(2, 1, 7, []), history.since];
        return { taken, all, waits, joined, again };
    })()""")
    assert found["taken"] == [True, True, True]
    assert found["all"] == {"points": [[2, 1], [3, 2], [4, 3], [5, 4], [6, 50], [7, 6]], "end": 7}
    assert [point[1] for point in found["waits"]] == [None] * 6
    assert found["joined"] == {"points": [[7, 11]], "end": 7}
    assert found["again"] == [7, False, 0]
