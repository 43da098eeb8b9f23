//! Real handshakes over loopback sockets, with certificates as `forebay keys` makes them and as it does not.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;

use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use rustls::{ClientConnection, ServerConnection, StreamOwned};
use tempfile::TempDir;
use time::{Duration, OffsetDateTime};

use super::*;
use crate::keys::{self, FEEDER_NAME, KeysRequest, TRAINER_NAME};

/// A folder of keys.
struct Keys(TempDir);

impl Keys {
    fn make() -> Self {
        let folder = tempfile::tempdir().unwrap();
        keys::make(&request(folder.path())).unwrap();
        Self(folder)
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    fn feeder(&self) -> TlsFiles {
        self.files("feeder")
    }

    fn trainer(&self) -> TlsFiles {
        self.files("trainer")
    }

    fn files(&self, side: &str) -> TlsFiles {
        TlsFiles {
            ca: self.path("ca.crt"),
            cert: self.path(&format!("{side}.crt")),
            key: self.path(&format!("{side}.key")),
        }
    }

    /// A certificate with other dates, signed by the folder's authority.
    fn dated(&self, side: &str, from: i64, to: i64) {
        let issuer_key = KeyPair::from_pkcs8_der_and_sign_algo(
            &match read_private_key(&self.path("ca.key")).unwrap() {
                rustls::pki_types::PrivateKeyDer::Pkcs8(key) => key,
                other => panic!("{other:?}"),
            },
            &rcgen::PKCS_ECDSA_P256_SHA256,
        )
        .unwrap();
        let now = OffsetDateTime::now_utc();
        let ca = keys::authority(&issuer_key, now);
        let mut params = CertificateParams::new([format!("{side}.forebay.internal")]).unwrap();
        params.extended_key_usages = vec![match side {
            "feeder" => ExtendedKeyUsagePurpose::ServerAuth,
            _ => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        params.not_before = now + Duration::days(from);
        params.not_after = now + Duration::days(to);
        let key = KeyPair::generate().unwrap();
        let issuer = Issuer::from_params(&ca, &issuer_key);
        let certificate = params.signed_by(&key, &issuer).unwrap();
        fs::write(self.path(&format!("{side}.crt")), keys::pem::certificate(&certificate)).unwrap();
        fs::write(self.path(&format!("{side}.key")), keys::pem::private_key(&key)).unwrap();
    }
}

fn request(folder: &Path) -> KeysRequest {
    KeysRequest {
        folder: folder.to_owned(),
        feeder_names: vec!["feeders.svc".to_owned(), "127.0.0.1".to_owned()],
        trainer_names: vec!["spiffe://cluster/ns/train/sa/job".to_owned()],
        days: 30,
    }
}

fn patterns(texts: &[&str]) -> Vec<NamePattern> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// What the two sides say: the server's result of reading `ping`, and the client's of reading `pong`.
type Outcome = (io::Result<()>, io::Result<()>);

fn exchange(
    stream: &mut (impl Read + Write),
    send: &[u8; 4],
    expected: &[u8; 4],
) -> io::Result<()> {
    stream.write_all(send)?;
    stream.flush()?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer)?;
    assert_eq!(&answer, expected);
    Ok(())
}

fn talk(server: &ServerTls, client: impl FnOnce(TcpStream) -> io::Result<()> + Send) -> Outcome {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let config = server.current();
    thread::scope(|scope| {
        let serving = scope.spawn(move || {
            let (socket, _) = listener.accept()?;
            let connection = ServerConnection::new(config).map_err(io::Error::other)?;
            let mut stream = StreamOwned::new(connection, socket);
            exchange(&mut stream, b"pong", b"ping")?;
            assert_eq!(stream.conn.alpn_protocol(), Some(&b"h2"[..]));
            Ok(())
        });
        let socket = TcpStream::connect(address).unwrap();
        let connected = client(socket);
        (serving.join().unwrap(), connected)
    })
}

fn connect(client: &ClientTls, host: &str, socket: TcpStream) -> io::Result<()> {
    let name = client.server_name(host).unwrap();
    let connection = ClientConnection::new(client.current(), name).map_err(io::Error::other)?;
    exchange(&mut StreamOwned::new(connection, socket), b"ping", b"pong")
}

fn talk_with(server: &ServerTls, client: &ClientTls, host: &str) -> Outcome {
    talk(server, |socket| connect(client, host, socket))
}

#[track_caller]
fn assert_refused(explained: &str, words: &[&str]) {
    for word in words {
        assert!(explained.contains(word), "{explained:?} lacks {word:?}");
    }
}

#[test]
fn both_sides_of_one_authority_talk() {
    let keys = Keys::make();
    let server = ServerTls::open(keys.feeder(), Vec::new()).unwrap();
    for (name, host) in
        [(None, "feeders.svc"), (None, "127.0.0.1"), (Some(FEEDER_NAME.to_owned()), "10.9.8.7")]
    {
        let client = ClientTls::open(keys.trainer(), name).unwrap();
        let (served, connected) = talk_with(&server, &client, host);
        served.unwrap();
        connected.unwrap();
    }
}

#[test]
fn client_without_a_certificate_is_refused() {
    let keys = Keys::make();
    let server = ServerTls::open(keys.feeder(), Vec::new()).unwrap();
    let client = ClientTls::open(keys.trainer(), None).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let bare = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_root_certificates(authorities(&keys.path("ca.crt")).unwrap())
        .with_no_client_auth();
    let (served, connected) = talk(&server, |socket| {
        let name = client.server_name("feeders.svc").unwrap();
        let connection = ClientConnection::new(Arc::new(bare), name).map_err(io::Error::other)?;
        exchange(&mut StreamOwned::new(connection, socket), b"ping", b"pong")
    });
    assert_refused(&server.explain(&served.unwrap_err()), &["no certificate", "feeders.tls"]);
    assert_refused(&client.explain(&connected.unwrap_err()), &["none was shown", "feeders.tls"]);
}

#[test]
fn client_of_another_authority_is_refused() {
    let (keys, strangers) = (Keys::make(), Keys::make());
    let server = ServerTls::open(keys.feeder(), Vec::new()).unwrap();
    // It knows the feeder's authority, and the feeder does not know its own.
    let files = TlsFiles { ca: keys.path("ca.crt"), ..strangers.trainer() };
    let client = ClientTls::open(files, None).unwrap();
    let (served, connected) = talk_with(&server, &client, "feeders.svc");
    let ca = keys.path("ca.crt").display().to_string();
    assert_refused(&server.explain(&served.unwrap_err()), &["not signed", &ca]);
    let cert = strangers.path("trainer.crt").display().to_string();
    assert_refused(&client.explain(&connected.unwrap_err()), &[&cert, "CA"]);
}

#[test]
fn feeder_of_another_authority_is_refused() {
    let (keys, strangers) = (Keys::make(), Keys::make());
    let server = ServerTls::open(strangers.feeder(), Vec::new()).unwrap();
    let client = ClientTls::open(keys.trainer(), None).unwrap();
    let (served, connected) = talk_with(&server, &client, "feeders.svc");
    let ca = keys.path("ca.crt").display().to_string();
    assert_refused(&client.explain(&connected.unwrap_err()), &["the feeder", "not signed", &ca]);
    let cert = strangers.path("feeder.crt").display().to_string();
    assert_refused(&server.explain(&served.unwrap_err()), &["the client refuses", &cert]);
}

#[test]
fn feeder_without_the_addressed_name_is_refused_with_its_names() {
    let keys = Keys::make();
    let server = ServerTls::open(keys.feeder(), Vec::new()).unwrap();
    let client = ClientTls::open(keys.trainer(), None).unwrap();
    let (served, connected) = talk_with(&server, &client, "other.svc");
    let explained = client.explain(&connected.unwrap_err());
    assert_refused(&explained, &["other.svc", "feeders.svc", "feeders.tls.name"]);
    served.unwrap_err();
    let (_, connected) = talk_with(&server, &client, "127.0.0.2");
    connected.unwrap_err();
}

#[test]
fn only_names_that_feed_allow_matches_are_admitted() {
    let keys = Keys::make();
    let client = ClientTls::open(keys.trainer(), None).unwrap();
    for allow in
        [&[TRAINER_NAME][..], &["*.forebay.internal"], &["x", "spiffe://cluster/ns/train/*"]]
    {
        let server = ServerTls::open(keys.feeder(), patterns(allow)).unwrap();
        let (served, connected) = talk_with(&server, &client, "feeders.svc");
        served.unwrap();
        connected.unwrap();
    }
    for allow in [&["x"][..], &["*.forebay"], &["spiffe://cluster/ns/other/*"]] {
        let server = ServerTls::open(keys.feeder(), patterns(allow)).unwrap();
        let (served, connected) = talk_with(&server, &client, "feeders.svc");
        let explained = server.explain(&served.unwrap_err());
        assert_refused(
            &explained,
            &["feed.allow", allow[0], TRAINER_NAME, "spiffe://cluster/ns/train/sa/job"],
        );
        assert_refused(&client.explain(&connected.unwrap_err()), &["feed.allow", "trainer.crt"]);
    }
}

#[test]
fn certificates_that_expire_or_begin_later_are_refused_by_the_peer() {
    for (from, to, word) in [(-9, -1, "expired"), (1, 9, "not valid yet")] {
        let keys = Keys::make();
        let (server, client) = (keys.feeder(), keys.trainer());
        let server = ServerTls::open(server, Vec::new()).unwrap();
        let client = ClientTls::open(client, None).unwrap();
        // As a client whose certificate expires while it runs: its own check was before.
        keys.dated("trainer", from, to);
        let chain = certificates(&keys.path("trainer.crt")).unwrap();
        let key = read_private_key(&keys.path("trainer.key")).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let late = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_root_certificates(authorities(&keys.path("ca.crt")).unwrap())
            .with_client_auth_cert(chain, key)
            .unwrap();
        let (served, connected) = talk(&server, |socket| {
            let name = client.server_name("feeders.svc").unwrap();
            let connection =
                ClientConnection::new(Arc::new(late), name).map_err(io::Error::other)?;
            exchange(&mut StreamOwned::new(connection, socket), b"ping", b"pong")
        });
        assert_refused(&server.explain(&served.unwrap_err()), &["the client", word]);
        assert_refused(&client.explain(&connected.unwrap_err()), &["trainer.crt", "--renew"]);
    }
}

#[test]
fn own_certificate_that_each_peer_would_refuse_is_refused_at_the_start() {
    for (from, to, word) in [(-9, -1, "has expired"), (1, 9, "not valid yet")] {
        let keys = Keys::make();
        keys.dated("feeder", from, to);
        let error = ServerTls::open(keys.feeder(), Vec::new()).unwrap_err().to_string();
        assert_refused(&error, &["feeder.crt", word, "--renew"]);
    }
    let keys = Keys::make();
    let error = ServerTls::open(keys.trainer(), Vec::new()).unwrap_err().to_string();
    assert_refused(&error, &["trainer.crt", "serverAuth", "feeder.crt"]);
    let error = ClientTls::open(keys.feeder(), None).unwrap_err().to_string();
    assert_refused(&error, &["feeder.crt", "clientAuth", "trainer.crt"]);
    let files = TlsFiles { cert: keys.path("ca.crt"), key: keys.path("ca.key"), ..keys.feeder() };
    let error = ServerTls::open(files, Vec::new()).unwrap_err().to_string();
    assert_refused(&error, &["ca.crt", "a CA's certificate"]);
}

#[test]
fn unusable_files_are_named() {
    let keys = Keys::make();
    let fifo = keys.path("fifo");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    fs::write(keys.path("empty"), "").unwrap();
    fs::write(keys.path("garbage"), [0xff; 4096]).unwrap();
    let half = fs::read_to_string(keys.path("feeder.crt")).unwrap();
    fs::write(keys.path("half"), &half[..half.len() / 2]).unwrap();
    fs::write(
        keys.path("no-der"),
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    )
    .unwrap();
    let missing = ["fifo", "missing", "empty", "garbage", "half", "no-der", "../../../../dev/zero"];
    for file in missing {
        for part in 0..3 {
            let mut files = keys.feeder();
            *[&mut files.ca, &mut files.cert, &mut files.key][part] = keys.path(file);
            let error = ServerTls::open(files, Vec::new()).unwrap_err().to_string();
            assert!(error.contains(file), "{part} {error}");
        }
    }
    let files = TlsFiles { key: keys.path("trainer.key"), ..keys.feeder() };
    let error = ServerTls::open(files, Vec::new()).unwrap_err().to_string();
    assert_refused(&error, &["trainer.key", "feeder.crt"]);
    let error = ClientTls::open(keys.trainer(), Some("a b".to_owned())).unwrap_err().to_string();
    assert_refused(&error, &["feeders.tls.name", "a b"]);
}

#[test]
fn garbage_instead_of_tls_harms_nobody_and_is_explained() {
    let keys = Keys::make();
    let server = ServerTls::open(keys.feeder(), Vec::new()).unwrap();
    let client = ClientTls::open(keys.trainer(), None).unwrap();
    for garbage in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        &[0x16, 3, 1, 0xff, 0xff],
        &[0; 64],
    ] {
        let (served, _) = talk(&server, |mut socket| {
            socket.write_all(garbage)?;
            socket.shutdown(std::net::Shutdown::Write)
        });
        let explained = server.explain(&served.unwrap_err());
        assert_refused(&explained, &["the client", "TLS"]);
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || listener.accept().unwrap().0.write_all(b"HTTP/1.1 400 no\r\n\r\n"));
        let error = connect(&client, "feeders.svc", TcpStream::connect(address).unwrap());
        let explained = client.explain(&error.unwrap_err());
        assert_refused(&explained, &["the feeder", "feed.tls"]);
    });
    // The same server still serves.
    let (served, connected) = talk_with(&server, &client, "feeders.svc");
    served.and(connected).unwrap();
}

#[test]
fn replaced_files_are_used_for_the_next_connection() {
    let keys = Keys::make();
    let server = ServerTls::open(keys.feeder(), Vec::new()).unwrap();
    let client = ClientTls::open(keys.trainer(), None).unwrap();
    let (first, again) = (server.current(), server.current());
    assert!(Arc::ptr_eq(&first, &again), "unchanged files are not read again");
    keys::renew(&request(keys.0.path())).unwrap();
    assert!(!Arc::ptr_eq(&first, &server.current()));
    let (served, connected) = talk_with(&server, &client, "feeders.svc");
    served.and(connected).unwrap();
    // Another authority replaces all files of the feeder: the daemon with the former files is a stranger.
    let others = Keys::make();
    for file in ["ca.crt", "feeder.crt", "feeder.key"] {
        fs::rename(others.path(file), keys.path(file)).unwrap();
    }
    let (served, connected) = talk_with(&server, &client, "feeders.svc");
    assert!(served.is_err() && connected.is_err());
    for file in ["trainer.crt", "trainer.key"] {
        fs::rename(others.path(file), keys.path(file)).unwrap();
    }
    let (served, connected) = talk_with(&server, &client, "feeders.svc");
    served.and(connected).unwrap();
}

#[test]
fn files_that_become_unusable_leave_the_former_ones_in_use() {
    let keys = Keys::make();
    let server = ServerTls::open(keys.feeder(), Vec::new()).unwrap();
    let client = ClientTls::open(keys.trainer(), None).unwrap();
    let key = fs::read(keys.path("feeder.key")).unwrap();
    for wrong in [Some(&b"garbage"[..]), Some(b""), None] {
        match wrong {
            Some(text) => fs::write(keys.path("feeder.key"), text).unwrap(),
            None => fs::remove_file(keys.path("feeder.key")).unwrap(),
        }
        let (served, connected) = talk_with(&server, &client, "feeders.svc");
        served.and(connected).unwrap();
    }
    keys.dated("feeder", -9, -1);
    let (served, connected) = talk_with(&server, &client, "feeders.svc");
    served.and(connected).unwrap();
    fs::write(keys.path("feeder.key"), key).unwrap();
}
