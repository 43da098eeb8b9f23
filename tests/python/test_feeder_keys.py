"""`forebay keys`, and a feeder and a loader that use what it makes, over TLS."""

import signal
import socket
import ssl
import subprocess

import forebay
import pytest
from support import PROGRAM

tomllib = pytest.importorskip("tomllib")


def keys(*arguments):
    return subprocess.run([PROGRAM, "keys", *arguments], capture_output=True, text=True, check=False)


def test_printed_tables_connect_a_loader_with_a_feeder(arrays_folder, tmp_path):
    folder = tmp_path / "keys"
    made = keys(folder)
    assert made.returncode == 0, made.stderr
    lines = [line.strip() for line in made.stdout.splitlines()]
    tables = [line for line in lines if line.startswith(("[feed", "tls = ", "allow = "))]
    assert set(tomllib.loads("\n".join(tables))) == {"feed", "feeders"}
    # Rows come from the feeder alone.
    tables.append('addresses = ["127.0.0.1:1"]\nlocal = "never"')
    file = tmp_path / "train.toml"
    text = f"""[dataset]
format = "npy"
path = "{arrays_folder}"
[order]
epochs = 1
[batch]
size = 8
[[stage]]
name = "preprocess"
operations = []
"""
    file.write_text(text + "\n".join(tables) + "\n")
    command = [PROGRAM, "feed", file, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as feeder:
        try:
            address = feeder.stdout.readline().strip().removeprefix("listening on ")
            with forebay.Loader(file, overrides={"feeders.addresses": [address]}) as loader:
                assert sorted(index for batch in loader for index in batch["index"].tolist()) == list(range(40))
        finally:
            feeder.send_signal(signal.SIGTERM)
        assert feeder.wait() == 0


def test_stranger_without_a_certificate_is_refused_and_named(arrays_folder, tmp_path):
    folder = tmp_path / "keys"
    assert keys(folder).returncode == 0
    file = tmp_path / "train.toml"
    tls = f'tls = {{ ca = "{folder}/ca.crt", cert = "{folder}/feeder.crt", key = "{folder}/feeder.key" }}'
    dataset = f'dataset = {{ format = "npy", path = "{arrays_folder}" }}'
    file.write_text(f'{dataset}\nstage = [{{ name = "copy", operations = [] }}]\nbatch.size = 8\n[feed]\n{tls}\n')
    command = [PROGRAM, "feed", file, "--listen", "127.0.0.1:0"]
    log = (tmp_path / "log").open("w+")
    with log, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as feeder:
        try:
            host, _, port = feeder.stdout.readline().strip().removeprefix("listening on ").rpartition(":")
            context = ssl.create_default_context(cafile=folder / "ca.crt")
            context.set_alpn_protocols(["h2"])
            with socket.create_connection((host, int(port))) as plain:
                stranger = context.wrap_socket(plain, server_hostname="feeder.forebay.internal")
                # In TLS 1.3 the refusal comes with the first read.
                with stranger, pytest.raises((ssl.SSLError, ConnectionError)):
                    stranger.recv(1)
        finally:
            feeder.send_signal(signal.SIGTERM)
        assert feeder.wait() == 0
        log.seek(0)
        assert "a daemon's connection ended: " in log.read()


def test_existing_keys_are_named_and_renewed_on_demand_alone(tmp_path):
    folder = tmp_path / "keys"
    assert keys(folder).returncode == 0
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    again = keys(folder)
    assert again.returncode == 1 and "ca.crt exists" in again.stderr and "--renew" in again.stderr
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert keys("--renew", folder).returncode == 0
    changed = {file.name for file in folder.iterdir() if file.read_bytes() != before[file.name]}
    assert changed == {"feeder.crt", "feeder.key", "trainer.crt", "trainer.key"}
