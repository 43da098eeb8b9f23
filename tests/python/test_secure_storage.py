"""A web server behind TLS, whose certificate an authority of its own signs."""

import datetime
import ipaddress
import time

import forebay
import numpy as np
import pytest
from support import config_of
from web_folder import Pages, served

x509 = pytest.importorskip("cryptography.x509")
from cryptography.hazmat.primitives import hashes, serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ec  # noqa: E402

SAMPLES = 24
BYTES = 300_000


def sign(name, key, issuer, issuer_key, extension):
    now = datetime.datetime.now(datetime.timezone.utc)
    day = datetime.timedelta(days=1)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - day).not_valid_after(now + day)
    return builder.add_extension(extension, True).sign(issuer_key, hashes.SHA256())


def named(text):
    return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, text)])


def pem(*parts):
    return b"".join(part.public_bytes(serialization.Encoding.PEM) for part in parts)


def make_authority(folder):
    """The authority's certificate, and the server's with its key, as files."""
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    root = sign(named("authority"), keys[0], named("authority"), keys[0], x509.BasicConstraints(True, None))
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    server = sign(named("server"), keys[1], named("authority"), keys[0], here)
    (folder / "authority.pem").write_bytes(pem(root))
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "server.pem").write_bytes(pem(server) + keys[1].private_bytes(*form))
    return folder / "authority.pem", folder / "server.pem"


@pytest.fixture
def authority(tmp_path):
    return make_authority(tmp_path)


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    generator = np.random.default_rng(1)
    for sample in range(SAMPLES):
        np.save(folder / f"{sample:03}.npy", generator.integers(0, 256, BYTES, dtype=np.uint8))
    return folder


def config(path, index):
    dataset = {"path": str(path), "format": "npy", "index": str(index)}
    return config_of(dataset, storage={"stall": "5s"}, order={"epochs": 2})


def arrays(config):
    with forebay.Loader(config) as loader:
        return [np.array(batch["array"]) for _ in loader.epochs_left() for batch in loader]


def assert_same(found, expected):
    assert len(found) == len(expected) == 2 * SAMPLES // 4
    for one, other in zip(found, expected):
        np.testing.assert_array_equal(one, other)


def test_bytes_behind_tls_are_those_of_the_folder_also_where_bodies_stop(data, authority, tmp_path, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(authority[0]))
    expected = arrays(config(data, tmp_path / "local.index"))
    stopped = []
    original = Pages.copyfile

    def copyfile(self, source, outputfile):
        if self.server.stops and len(stopped) < 3 and self.path.endswith(".npy"):
            stopped.append(self.path)
            outputfile.write(source.read(100_000))
            outputfile.flush()
            time.sleep(0.05)
            self.close_connection = True
            self.connection.close()
            return
        original(self, source, outputfile)

    monkeypatch.setattr(Pages, "copyfile", copyfile)
    for stops in (False, True):
        with served(data, authority[1], stops=stops) as server:
            assert_same(arrays(config(server.url, tmp_path / f"remote-{stops}.index")), expected)
        # Connections are kept: there are fewer than requests for samples.
        clients = [client for path, client in server.clients if path.endswith(".npy")]
        assert len(clients) >= 2 * SAMPLES and len(set(clients)) < len(clients)
    assert len(stopped) == 3


def test_a_server_that_no_authority_has_signed_is_refused(data, tmp_path, authority):
    refused = pytest.raises(forebay.Error, match=r"not trusted here.*UnknownIssuer.*SSL_CERT_FILE")
    with served(data, authority[1]) as server, refused:
        arrays(config(server.url, tmp_path / "remote.index"))
