"""The daemon's page and a report in a headless Chromium, with a real daemon and trainer. Skipped without Chromium.

FOREBAY_SCREENSHOTS names a folder for screenshots of the page.
"""

import contextlib
import json
import os
import subprocess
from pathlib import Path

import chromium
import forebay
import numpy
import pytest
from support import PROGRAM

pytestmark = pytest.mark.skipif(
    chromium.find() is None, reason="no Chromium for the page (Debian: apt-get install chromium)"
)

HOSTILE = "<img src=x onerror=document.title='owned'>.npy"
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


def keep(browser, name):
    picture = browser.screenshot()
    assert picture.startswith(b"\x89PNG") and len(picture) > 5_000
    if folder := os.environ.get("FOREBAY_SCREENSHOTS"):
        (Path(folder) / f"{name}.png").write_bytes(picture)


def test_the_page_draws_a_running_daemon(browser, loader):
    browser.look(1280, 800)
    browser.open(f"http://{loader.stats()['metrics']}/")
    browser.wait_for("document.getElementById('state')?.className === 'live'")
    for _ in range(3):
        for _ in loader:
            pass
    browser.wait_for("document.querySelector('#bad .reason') !== null")
    # Two reports make a window.
    browser.wait_for("document.querySelector('#samples .line').getAttribute('d').length > 0")
    assert text_of(browser, "#streams button") == "dict"
    assert len(text_of(browser, "#sentence")) > 10
    names = browser.evaluate("[...document.querySelectorAll('#pipeline .name')].map((name) => name.innerText)")
    assert names == ["fetch", "work", "trainer"]
    assert browser.evaluate("document.querySelectorAll('#rings .slot').length") == 8
    # A name of a file is text: nothing of it was made an element, and nothing ran.
    assert HOSTILE in text_of(browser, "#bad")
    assert browser.evaluate("document.querySelectorAll('main img, main script').length") == 0
    assert browser.evaluate("document.title") == "dict · Forebay"
    missed = [item for item in loader.stats()["quiet"] if not item["in_force"]]
    assert browser.evaluate(NOT_IN_FORCE) == len(missed)
    for width, height in ((1280, 800), (390, 844)):
        for scheme in ("light", "dark"):
            browser.look(width, height, scheme)
            ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (ground == "rgb(13, 17, 23)") == (scheme == "dark")
            # Nothing sticks out to the side.
            assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
            keep(browser, f"page-{width}-{scheme}")
    assert browser.errors == []


def test_the_page_asks_nothing_while_nobody_looks_and_says_when_no_answer_comes(browser, loader):
    browser.open(f"http://{loader.stats()['metrics']}/")
    browser.wait_for("document.getElementById('state')?.className === 'live'")
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
    browser.open(f"http://{loader.stats()['metrics']}/")
    browser.wait_for("document.getElementById('state')?.className === 'live'")
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


def test_a_report_draws_its_run(browser, folder, tmp_path_factory):
    page = tmp_path_factory.mktemp("report") / "out.html"
    config = page.with_name("train<b>.toml")
    (folder / HOSTILE).unlink()
    config.write_text(
        f'dataset = {{ format = "npy", path = "{folder}" }}\nbatch.size = 4\norder.epochs = 1\n'
        '[[stage]]\nname = "work"\noperations = [{ op = "delay", milliseconds = 50 }]\n'
    )
    subprocess.run([PROGRAM, "bench", config, "--report", page], check=True, capture_output=True)
    for width, scheme in ((1280, "light"), (390, "dark")):
        browser.look(width, 844, scheme)
        browser.open(page.as_uri())
        browser.wait_for("document.querySelector('.facts') !== null")
        assert browser.evaluate("document.title") == "forebay bench: train<b>"
        names = browser.evaluate("[...document.querySelectorAll('#pipeline .name')].map((name) => name.innerText)")
        assert names == ["fetch", "work", "trainer"]
        lines = browser.evaluate("[...document.querySelectorAll('.plot .line')].map((line) => line.getAttribute('d'))")
        assert len(lines) == 5
        assert all(lines)
        # All tasks of a stage are in the bars of its histogram.
        bars = "[...document.querySelectorAll('.bar.tone-1 title')].map((title) => parseInt(title.textContent))"
        assert sum(browser.evaluate(bars)) == 40
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
        keep(browser, f"report-{width}-{scheme}")
    assert browser.evaluate("performance.getEntriesByType('resource').length") == 0
    assert browser.errors == []


def test_windows_are_the_daemons_own(browser, loader):
    """Against a report of a real daemon, moved on by known figures."""
    address = loader.stats()["metrics"]
    next(iter(loader))
    browser.open(f"http://{address}/")
    browser.wait_for("document.getElementById('state')?.className === 'live'")
    window = browser.evaluate("""(async () => {
        const { between } = await import("/metrics.js");
        const earlier = await (await fetch("/stats.json")).json();
        const later = structuredClone(earlier);
        for (const stage of later.streams[0].stages) {
            stage.num_tasks += 101;
            stage.num_failures += 1;
            stage.busy_seconds += 5;
        }
        const queue = later.streams[0].stages[0].queue;
        const occupied = queue.occupancy_rate * queue.elapsed;
        queue.elapsed += 10;
        queue.num_items += 100;
        queue.occupancy_rate = (occupied + 2.5) / queue.elapsed;
        later.sessions[0].seconds += 10;
        later.sessions[0].wait_seconds += 4;
        later.sessions[0].batches_taken += 20;
        later.cpu_seconds += 15;
        return between(earlier, later, "dict");
    })()""")
    with contextlib.suppress(KeyError):
        del window["sessions"]
    assert window["seconds"] == pytest.approx(10)
    assert window["samplesPerSecond"] == pytest.approx(10)
    assert window["batchesPerSecond"] == pytest.approx(2)
    assert window["waitShare"] == pytest.approx(0.4)
    assert window["cpuCores"] == pytest.approx(1.5)
    stage = window["stages"][0]
    assert (stage["rate"], stage["busy"], stage["meanSeconds"]) == pytest.approx((10, 0.5, 0.05))
    assert stage["queue"]["occupancy"] == pytest.approx(0.25)
