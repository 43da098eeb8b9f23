"""Figures over HTTP from real daemons: what a scraper reads, and every way by which a daemon serves them."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import exposition
import forebay
import pytest

PROGRAM = os.environ.get("FOREBAY_PROGRAM") or str(Path(sys.executable).with_name("forebay"))
DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"
ANY_PORT = {"metrics": "127.0.0.1:0"}


def get(address, path):
    with urllib.request.urlopen(f"http://{address}{path}", timeout=60) as answer:
        return answer.read().decode()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_scraper_reads_every_documented_name_and_counters_never_go_down(config):
    documented = set(re.findall(r"^\| `(forebay_\w+)`", DOCUMENT.read_text(), re.MULTILINE))
    with forebay.Loader({**config(), "listen": ANY_PORT}) as loader:
        address = loader.stats()["metrics"]
        before = {}
        for epoch in range(2):
            for number, _ in enumerate(loader):
                text = get(address, "/metrics")
                families = exposition.parse(text)
                assert set(families) == documented
                now = exposition.series(families, ("counter", "histogram"))
                for key, value in before.items():
                    assert now[key] >= value, (key, epoch, number)
                before = now
        labels = (("rank", "0"), ("session", "1"), ("stream", "dict"))
        # An answer is kept for a moment.
        deadline = time.monotonic() + 60
        while now["forebay_session_batches_taken_total", labels] < 10:
            assert time.monotonic() < deadline, now
            now = exposition.series(exposition.parse(get(address, "/metrics")), ("counter",))
        states = families["forebay_session_slots"].samples
        assert {dict(labels)["state"] for _, labels in states} == {"free", "filling", "ready", "leased"}
        assert sum(states.values()) == 5
        assert json.loads(get(address, "/stats.json"))["sessions"][0]["world_size"] == 1
        assert get(address, "/healthz") == get(address, "/readyz") == "ok\n"
        promtool = shutil.which("promtool")
        if promtool:
            subprocess.run([promtool, "check", "metrics"], input=text, text=True, check=True)


@pytest.mark.parametrize("command", ["serve", "run"])
def test_serve_and_run_serve_figures_too(config, tmp_path, command):
    dataset = config()["dataset"]["path"]
    file = tmp_path / "train.toml"
    file.write_text(
        f'dataset = {{ format = "npy", path = "{dataset}" }}\nbatch.size = 8\n'
        '[[stage]]\nname = "copy"\noperations = []\n[listen]\nmetrics = "127.0.0.1:0"\n'
    )
    place = str(tmp_path / "daemon.sock")
    if command == "serve":
        arguments = ["serve", str(file), "--socket", place]
    else:
        arguments = ["run", str(file), "--set", f"listen.socket={place}", "--", "sleep", "600"]
    daemon = subprocess.Popen([PROGRAM, *arguments], stderr=subprocess.PIPE, text=True)
    try:
        logged = []
        while not (found := re.search(r"metrics at http://(127\.0\.0\.1:\d+)/", logged[-1] if logged else "")):
            line = daemon.stderr.readline()
            assert line, f"it ended: {logged}"
            logged.append(line)
        address = found[1]
        assert exposition.parse(get(address, "/metrics"))["forebay_verdict"].samples == {("", (("limit", "none"),)): 1}
        stats = subprocess.run([PROGRAM, "stats", "--json", place], capture_output=True, check=True).stdout
        assert json.loads(stats)["metrics"] == address
        # Another daemon finds the port taken, says so, and says what to do.
        second = [PROGRAM, "serve", str(file), "--set", f"listen.metrics={address}", "--socket", place + "2"]
        refused = subprocess.run(second, capture_output=True, text=True, timeout=60, check=False)
        assert refused.returncode == 1
        assert address in refused.stderr and "choose another port, or port 0" in refused.stderr, refused.stderr
    finally:
        daemon.terminate()
        daemon.wait(60)
        daemon.stderr.close()
    with pytest.raises(OSError):
        get(address, "/healthz")


def test_a_private_daemon_refuses_a_taken_port_and_an_open_address(config):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(forebay.ConfigError, match=f"{address}.*choose another port, or port 0"):
            forebay.Loader({**config(), "listen": {"metrics": address}})
    with pytest.raises(forebay.ConfigError, match=r"other machines may reach.*metrics_from"):
        forebay.Loader({**config(), "listen": {"metrics": "0.0.0.0:0"}})


def test_figures_come_back_with_a_daemon_that_was_killed(config):
    address = f"127.0.0.1:{free_port()}"
    with forebay.Loader({**config(), "listen": {"metrics": address}}) as loader:
        batches = iter(loader)
        next(batches)
        first = json.loads(get(address, "/stats.json"))["pid"]
        os.kill(first, signal.SIGKILL)
        assert len(list(batches)) == 4
        for _ in loader:
            pass
        assert loader.stats()["metrics"] == address
        assert json.loads(get(address, "/stats.json"))["pid"] != first
