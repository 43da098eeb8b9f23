"""Metrics over HTTP from daemons: private, served, under `run`, restarted. Rust's tests cover the text format."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import urllib.request

import forebay
import pytest
from support import PROGRAM, ROOT, config_of, free_port, run_program, wait_until, write_toml

DOCUMENT = ROOT / "docs" / "reference" / "metrics.md"
SAMPLE = re.compile(r'(\w+(?:\{(?:\w+="[^"]*",?)*\})?) (\S+)')


def get(address, path):
    with urllib.request.urlopen(f"http://{address}{path}", timeout=60) as answer:
        return answer.read().decode()


def scrape(address):
    """The text, and every value by name and labels."""
    text = get(address, "/metrics")
    lines = [SAMPLE.fullmatch(line) for line in text.splitlines() if not line.startswith("# ")]
    assert all(lines) and len({line[1] for line in lines}) == len(lines), text
    return text, {line[1]: float(line[2]) for line in lines}


def test_a_scraper_reads_every_documented_name_and_counters_never_go_down(config):
    documented = set(re.findall(r"^\| `(forebay_\w+)`", DOCUMENT.read_text(), re.MULTILINE))
    with forebay.Loader({**config(), "listen": {"metrics": "127.0.0.1:0"}}) as loader:
        address = loader.stats()["metrics"]
        before = {}
        for _ in range(2):
            for _ in loader:
                text, now = scrape(address)
                assert set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE)) == documented
                for key, value in before.items():
                    assert not re.match(r"\w+_(total|count|sum|bucket)\b", key) or now[key] >= value, key
                before = now
        taken = 'forebay_session_batches_taken_total{stream="dict",session="1",rank="0"}'
        # The daemon serves an answer again for some milliseconds.
        wait_until(lambda: scrape(address)[1][taken] == 10, "the count of the last batch")
        slots = {key: value for key, value in now.items() if key.startswith("forebay_session_slots{")}
        assert len(slots) == 4 and sum(slots.values()) == 5
        assert json.loads(get(address, "/stats.json"))["sessions"][0]["world_size"] == 1
        assert get(address, "/healthz") == get(address, "/readyz") == "ok\n"
        promtool = shutil.which("promtool")
        if promtool:
            subprocess.run([promtool, "check", "metrics"], input=text, text=True, check=True)


@pytest.mark.parametrize("command", ["serve", "run"])
def test_serve_and_run_serve_metrics_too(config, tmp_path, command):
    dataset = config()["dataset"]
    file = write_toml(tmp_path / "train.toml", config_of(dataset, listen={"metrics": "127.0.0.1:0"}))
    place = str(tmp_path / "daemon.sock")
    more = {"serve": ["--socket", place], "run": ["--set", f"listen.socket={place}", "--", "sleep", "600"]}[command]
    daemon = subprocess.Popen([PROGRAM, command, str(file), *more], stderr=subprocess.PIPE, text=True)
    try:
        lines = iter(daemon.stderr.readline, "")
        address = next(found[1] for found in map(re.compile(r"metrics at http://([^/]+)/").search, lines) if found)
        assert scrape(address)[1]['forebay_verdict{limit="none"}'] == 1
        assert json.loads(run_program("stats", "--json", place).stdout)["metrics"] == address
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


def test_metrics_come_back_with_a_daemon_that_was_killed(config):
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
