//! Data behind a URL: the batches of the same folder on disk, states that go over from one to the other, and weather.
//!
//! The server is the one of `storage/remote/testing.rs`; tests/python has one that checks signatures.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_client::{Builder, Loader, Next};
use forebay_storage_remote::testing::{Fault, Server};
use forebay_synth::ArrayContainer;
use forebay_tests::taken::{ids, sorted, take, take_epoch, until_error};
use forebay_tests::{Taken, TestDir, data, program, test_dir, wait_until};

const SAMPLES: u64 = 96;
const SECRET: &str = "a-secret-that-nobody-may-see";

/// A folder of images on disk, and the same behind a URL.
struct Twins {
    dir: TestDir,
    server: Server,
    local: PathBuf,
    remote: PathBuf,
}

impl Twins {
    fn new(scheme: &str, keys: &str) -> Self {
        Self::with(scheme, keys, storage_keys)
    }

    /// A client that gives up early.
    fn impatient(scheme: &str, keys: &str) -> Self {
        Self::with(scheme, keys, impatient_keys)
    }

    fn with(scheme: &str, keys: &str, storage: fn(&Server, &str) -> String) -> Self {
        let dir = TestDir::new();
        data::images(&dir.path("images"), SAMPLES, 2);
        let server = Server::of(&dir.path(""));
        let keys = format!("order.epochs = 2\nring.slots = 3\n{keys}");
        let text = data::image_config(&dir.path("images"), &keys);
        let local = dir.config("local.toml", &text);
        let url = server.url(scheme, "images");
        let keys = format!("{keys}\n{}", storage(&server, scheme));
        let remote = dir.config("remote.toml", &data::image_config(Path::new(&url), &keys));
        Self { dir, server, local, remote }
    }

    fn expected(&self) -> Vec<Taken> {
        let mut loader = attach(&self.local);
        [take_epoch(&mut loader), take_epoch(&mut loader)].concat()
    }
}

/// The keys that lead a URL to the server.
fn storage_keys(server: &Server, scheme: &str) -> String {
    let endpoint = match scheme {
        "http" => String::new(),
        _ => format!(", endpoint = \"http://127.0.0.1:{}\"", server.port()),
    };
    format!("storage = {{ anonymous = true{endpoint} }}")
}

/// The same for a server that is silent at times: a request that it does not answer is repeated early.
fn impatient_keys(server: &Server, scheme: &str) -> String {
    storage_keys(server, scheme).replace(" }", ", stall = \"300ms\" }")
}

fn loader(config: &Path) -> Builder {
    test_dir::loader(config, 0, 1)
}

fn attach(config: &Path) -> Loader {
    loader(config).attach().unwrap()
}

/// A configuration that copies arrays or archives; `keys` has the batch, and the storage behind a URL.
fn copying(dir: &TestDir, file: &str, path: &str, format: &str, keys: &str) -> PathBuf {
    let text = format!(
        "dataset.path = {path:?}\ndataset.format = {format:?}\norder.epochs = 1\n{keys}\n\
         stage = [{{ name = \"copy\", operations = [] }}]\n"
    );
    dir.config(file, &text)
}

#[test]
fn a_url_gives_the_batches_of_the_folder() {
    for scheme in ["s3", "gs", "http"] {
        let twins = Twins::new(scheme, "");
        let mut loader = attach(&twins.remote);
        let found = [take_epoch(&mut loader), take_epoch(&mut loader)].concat();
        assert_eq!(found, twins.expected(), "{scheme}");
        let once = sorted(ids(&found[..found.len() / 2]));
        assert!(once.windows(2).all(|pair| pair[0] < pair[1]), "{scheme}: {once:?}");
    }
}

/// Elements go from the connection's buffer into their rows, so a row may be half written when an answer breaks.
#[test]
fn arrays_behind_a_url_are_those_on_disk_in_any_weather() {
    let dir = TestDir::new();
    data::stack(&dir.path("stack"), 40);
    data::arrays(&dir.path("files"), ArrayContainer::NpyFiles, 40);
    data::arrays(&dir.path("archives"), ArrayContainer::NpzFiles, 40);
    // The same elements behind another header, which is seen when the first of them have come.
    let odd = dir.path("files/class-003/00000003.npy");
    let bytes = std::fs::read(&odd).unwrap();
    let header = String::from_utf8_lossy(&bytes[10..128]).replace("'descr': ", "'descr':  ");
    let text = format!("{:<117}\n", header.trim_end());
    std::fs::write(&odd, [&bytes[..10], text.as_bytes(), &bytes[128..]].concat()).unwrap();
    let server = Server::of(&dir.path(""));
    let keys = "batch.size = 4\ndataset.outage_timeout = \"60s\"";
    for (name, format) in [("stack/samples.npy", "npy"), ("files", "npy"), ("archives", "npz")] {
        let file = name.replace(['/', '.'], "-");
        let local = format!("local-{file}.toml");
        let local = copying(&dir, &local, dir.path(name).to_str().unwrap(), format, keys);
        let expected = take_epoch(&mut attach(&local));
        assert_eq!(expected.len(), 10);
        for scheme in ["s3", "http"] {
            let keys = format!("{keys}\n{}", impatient_keys(&server, scheme));
            let url = server.url(scheme, name);
            let remote = copying(&dir, &format!("{scheme}-{file}.toml"), &url, format, &keys);
            server.set_weather(|_| Fault::None);
            assert_eq!(take_epoch(&mut attach(&remote)), expected, "{scheme} {name}");
            server.set_weather(|request| match request.number % 9 {
                _ if request.is_listing() => Fault::None,
                1 => Fault::Short(40),
                3 => Fault::Short(140),
                5 => Fault::Stall(133),
                7 => Fault::Longer(9),
                _ => Fault::None,
            });
            assert_eq!(take_epoch(&mut attach(&remote)), expected, "{scheme} {name}");
        }
    }
}

/// A web server's files have no length in the index, so the first response for one is all that is known of it.
#[test]
fn a_first_response_that_announces_more_than_it_sends_is_repeated() {
    let dir = TestDir::new();
    data::arrays(&dir.path("archives"), ArrayContainer::NpzFiles, 8);
    let keys = "batch.size = 4";
    let local = dir.path("archives");
    let local = copying(&dir, "local.toml", local.to_str().unwrap(), "npz", keys);
    let server = Server::of(&dir.path(""));
    let keys = format!("{keys}\n{}", storage_keys(&server, "http"));
    let remote = copying(&dir, "remote.toml", &server.url("http", "archives"), "npz", &keys);
    let longer = Arc::new(AtomicU64::new(0));
    server.set_weather({
        let longer = Arc::clone(&longer);
        move |request| {
            let is_first = request.method == "GET" && request.path.ends_with("00000000.npz");
            match is_first && longer.fetch_add(1, Ordering::Relaxed) == 0 {
                true => Fault::Longer(9),
                false => Fault::None,
            }
        }
    });
    assert_eq!(take_epoch(&mut attach(&remote)), take_epoch(&mut attach(&local)));
    assert!(longer.load(Ordering::Relaxed) > 1);
}

#[test]
fn a_state_goes_over_from_the_folder_to_the_bucket_and_back_and_nothing_is_listed_twice() {
    let twins = Twins::new("s3", "");
    let expected = twins.expected();
    let listings = Arc::new(AtomicU64::new(0));
    twins.server.set_weather({
        let listings = Arc::clone(&listings);
        move |request| {
            listings.fetch_add(request.is_listing().into(), Ordering::SeqCst);
            Fault::None
        }
    });
    let mut state = None;
    let mut found = Vec::new();
    for (place, config) in
        [&twins.local, &twins.remote, &twins.local, &twins.remote].into_iter().enumerate()
    {
        let mut builder = loader(config);
        if let Some(state) = state.take() {
            builder = builder.state(state, false);
        }
        let mut loader = builder.attach().unwrap();
        found.extend(take(&mut loader, if place == 3 { expected.len() / 2 - 9 } else { 3 }));
        state = Some(loader.state(0).unwrap());
        if place == 1 {
            assert!(listings.swap(0, Ordering::SeqCst) > 0, "the first start lists");
        }
    }
    assert_eq!(found, expected[..found.len()]);
    assert_eq!(found.len(), expected.len() / 2);
    assert_eq!(listings.load(Ordering::SeqCst), 0, "the second start takes the index");
    assert!(program::run(twins.dir.forebay(&["index"]).arg(&twins.remote)).status.success());
    assert!(listings.load(Ordering::SeqCst) > 0, "`forebay index` lists anew");
}

#[test]
fn in_any_weather_each_sample_comes_once_and_as_it_is() {
    let twins = Twins::impatient("s3", "dataset.outage_timeout = \"60s\"");
    twins.server.set_weather(|request| match request.number % 11 {
        0 => Fault::Status(503, Some(0), "<Error><Code>SlowDown</Code></Error>".to_owned()),
        2 => Fault::Close,
        3 => Fault::Short(100),
        5 if request.number % 3 == 0 => Fault::Stall(100),
        6 => Fault::Delay(Duration::from_millis(20)),
        7 => Fault::Longer(9),
        8 => Fault::Status(500, None, String::new()),
        9 if request.number % 3 == 0 => Fault::Silence,
        _ => Fault::None,
    });
    let found = take_epoch(&mut attach(&twins.remote));
    let expected = twins.expected();
    assert_eq!(found, expected[..expected.len() / 2]);
}

#[test]
fn a_server_that_goes_away_is_waited_for_and_named() {
    let mut twins = Twins::new("s3", "dataset.outage_timeout = \"60s\"");
    let expected = twins.expected();
    let mut loader = attach(&twins.remote);
    let mut found = take(&mut loader, 2);
    twins.server.close();
    let mut outage = serde_json::Value::Null;
    wait_until("the outage is announced", || match loader.try_next().unwrap() {
        Next::Batch(batch) => {
            found.push(Taken::of(&batch));
            false
        }
        Next::End => panic!("the epoch ended without an outage"),
        Next::Waiting => {
            let stats: serde_json::Value = serde_json::from_str(&loader.stats().unwrap()).unwrap();
            outage = stats["streams"][0]["outage"].clone();
            !outage.is_null()
        }
    });
    let said = outage.to_string();
    assert!(said.contains("s3://bucket/images/") && said.contains("refused"), "{said}");
    twins.server.open();
    found.extend(take_epoch(&mut loader));
    assert_eq!(found, expected[..expected.len() / 2]);
}

/// Parts of objects that lie behind each other are asked for together where they are wanted in that order, or in blocks.
#[test]
fn neighbours_come_by_one_request_where_samples_come_in_order_or_in_blocks() {
    let dir = TestDir::new();
    data::stack(&dir.path("stack"), 1000);
    // Three members each.
    std::fs::create_dir(dir.path("tars")).unwrap();
    for archive in 0..2 {
        let names = (0..150).map(|sample| format!("{archive}{sample:03}"));
        let members: Vec<_> = names
            .flat_map(|name| {
                [("a.txt", "a.txt "), ("b.txt", "b.txt "), ("cls", "")]
                    .map(|(field, text)| (format!("{name}.{field}"), format!("{text}{name}")))
            })
            .collect();
        let members: Vec<_> =
            members.iter().map(|(name, text)| (name.as_str(), text.as_bytes())).collect();
        let path = dir.path(&format!("tars/{archive}.tar"));
        std::fs::write(path, forebay_synth::tar::archive(&members)).unwrap();
    }
    let server = Server::of(&dir.path(""));
    let requests = Arc::new(AtomicU64::new(0));
    let fields = "dataset.fields = { a = { from = \"a.txt\", as = \"text\" }, b = { from = \"b.txt\", as = \"text\" }, \
                  label = { from = \"cls\", as = \"integer\" } }";
    for (format, name, samples, keys) in
        [("npy", "stack/samples.npy", 1000, ""), ("webdataset", "tars", 300, fields)]
    {
        for shuffle in ["true", "false", "\"blocks\""] {
            let keys =
                format!("batch.size = 20\norder.shuffle = {shuffle}\nring.slots = 3\n{keys}");
            let shuffle = shuffle.trim_matches('"');
            let local = format!("{format}-{shuffle}.toml");
            let local = copying(&dir, &local, dir.path(name).to_str().unwrap(), format, &keys);
            let expected = take_epoch(&mut attach(&local));
            let keys = format!("{keys}\n{}", storage_keys(&server, "s3"));
            let remote = format!("s3-{format}-{shuffle}.toml");
            let remote = copying(&dir, &remote, &server.url("s3", name), format, &keys);
            // The index is made by it.
            assert!(program::run(dir.forebay(&["index"]).arg(&remote)).status.success());
            requests.store(0, Ordering::SeqCst);
            let count = Arc::clone(&requests);
            server.set_weather(move |request| {
                count.fetch_add((request.headers.contains_key("range")).into(), Ordering::SeqCst);
                Fault::None
            });
            let mut loader = loader(&remote).attach().unwrap();
            let first = take(&mut loader, 7);
            let state = loader.state(0).unwrap();
            drop(loader);
            let mut loader = self::loader(&remote).state(state, false).attach().unwrap();
            let found = [first, take_epoch(&mut loader)].concat();
            assert_eq!(found, expected, "{format} {shuffle}");
            let found = requests.load(Ordering::SeqCst);
            println!("{format}, shuffle {shuffle}: {found} requests for {samples} samples");
            if shuffle == "true" {
                assert!(found >= samples, "{format}: {found}");
            } else {
                assert!(found <= samples / 10, "{format}: {found}");
            }
        }
    }
}

#[test]
fn what_cannot_pass_ends_the_run_by_name() {
    let twins = Twins::new("s3", "dataset.outage_timeout = \"2s\"");
    let begin = |fault: Fault| {
        twins.server.set_weather(|_| Fault::None);
        let mut loader = attach(&twins.remote);
        take(&mut loader, 1);
        twins.server.set_weather(move |_| fault.clone());
        until_error(&mut loader).1.to_string()
    };
    let denied =
        "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>".to_owned();
    for (fault, said) in [
        (Fault::Status(403, None, denied), "403 AccessDenied \"Access Denied\""),
        (Fault::OtherTag, "has changed since the dataset was indexed"),
        (
            Fault::Redirect("https://elsewhere/x".to_owned()),
            "a redirect to elsewhere, which is not followed",
        ),
        (Fault::Status(500, None, String::new()), "500 Internal Server Error"),
    ] {
        let error = begin(fault);
        assert!(error.contains("s3://bucket/images/") && error.contains(said), "{error}");
    }
}

#[test]
fn every_command_takes_a_url_as_it_takes_a_folder() {
    let twins = Twins::new("s3", "");
    let said = |arguments: &[&str], config: &Path| {
        let finished = program::run(twins.dir.forebay(arguments).arg(config));
        assert!(finished.status.success(), "{arguments:?}: {finished:?}");
        finished.stdout
    };
    let both =
        |arguments: &[&str]| [&twins.local, &twins.remote].map(|config| said(arguments, config));
    let [local, remote] = both(&["check", "--plan-only", "--sample=4"]);
    // A connection takes memory, and more reads are worth while.
    let differing = ["  memory ", "  opening ", "  stage fetch "];
    let is_same = |line: &&str| !differing.iter().any(|one| line.starts_with(one));
    let without_name = |text: &str, name: &str| {
        let lines = text.lines().filter(is_same);
        lines.collect::<Vec<_>>().join("\n").replace(name, "NAME")
    };
    assert_eq!(without_name(&local, "local"), without_name(&remote, "remote"));
    let [local, remote] =
        both(&["index"]).map(|text| text.split(" in ").next().unwrap().to_owned());
    assert_eq!(local.replace("local", "remote"), remote);
    let [local, remote] = both(&["bench", "--json", "--batches", "3"]).map(|text| {
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        report["samples"].clone()
    });
    assert_eq!(local, remote);
    let [local, remote] = both(&["doctor", "--read-seconds", "0.1"]);
    assert!(local.contains("one at a time gives"), "{local}");
    assert!(remote.contains("KiB begins after") && remote.contains("1 at once "), "{remote}");
    let endpoint = format!("storage.endpoint=http://127.0.0.1:{}", twins.server.port());
    let url = twins.server.url("s3", "images");
    let init = ["init", "--force", "--set", &endpoint, "--set", "storage.anonymous=true"];
    let [local, remote] = [(twins.dir.path("images"), &init[..2]), (url.clone().into(), &init[..])]
        .map(|(path, arguments)| {
            said(arguments, &path);
            std::fs::read_to_string(twins.dir.path("train.toml")).unwrap()
        });
    let keys = format!(
        "\n[storage]\nendpoint = {:?}\nanonymous = true\n",
        endpoint.split_once('=').unwrap().1
    );
    assert!(remote.contains(&keys), "{remote}");
    assert_eq!(
        remote.replace(&keys, "").replace(&url, twins.dir.path("images").to_str().unwrap()),
        local
    );
    said(&["check"], &twins.dir.path("train.toml"));
    let batch = take(&mut attach(&twins.dir.path("train.toml")), 1);
    assert_eq!(batch.len(), 1);
}

#[test]
fn a_far_server_is_told_by_its_latency_and_its_requests_are_counted() {
    let socket = "[[stage]]\nname = \"fetch\"\nconcurrency = 2\n";
    let twins = Twins::new("s3", "order.epochs = 1000");
    let text = std::fs::read_to_string(&twins.remote).unwrap().replace("order.epochs = 2\n", "");
    std::fs::write(&twins.remote, format!("{text}\n{socket}")).unwrap();
    let refused = Arc::new(AtomicU64::new(0));
    twins.server.set_weather({
        let refused = Arc::clone(&refused);
        move |request| match request.number {
            _ if request.is_listing() => Fault::None,
            number if number % 500 == 499 => {
                refused.fetch_add(1, Ordering::SeqCst);
                Fault::Status(503, Some(0), String::new())
            }
            _ => Fault::Delay(Duration::from_millis(15)),
        }
    });
    let mut loader = attach(&twins.remote);
    let mut stats = serde_json::Value::Null;
    wait_until("the verdict names the latency", || {
        take(&mut loader, 2);
        stats = serde_json::from_str(&loader.stats().unwrap()).unwrap();
        stats["verdict"]["sentence"].to_string().contains("by its latency")
    });
    let requests = &stats["streams"][0]["requests"];
    let counted = |name: &str| requests[name].as_u64().unwrap();
    assert!(
        counted("num_requests") >= counted("num_whole") && counted("num_whole") > 0,
        "{requests}"
    );
    assert!(counted("bytes") > 0 && counted("in_flight") <= 2, "{requests}");
    assert!(counted("num_refused") <= refused.load(Ordering::SeqCst), "{requests}");
    assert!(requests["p50_first_byte"].as_f64().unwrap() >= 0.014, "{requests}");
    let window = stats["sessions"][0]["window"]["requests"].to_string();
    assert!(window.contains("requests/s") && window.contains("to the first byte"), "{window}");
}

#[test]
fn each_command_names_the_object_the_status_and_what_to_do() {
    let twins = Twins::new("s3", "");
    assert!(program::run(twins.dir.forebay(&["index"]).arg(&twins.remote)).status.success());
    let denied = "<Error><Code>AccessDenied</Code><RequestId>4442587F</RequestId></Error>";
    twins.server.set_weather(move |_| Fault::Status(403, None, denied.to_owned()));
    for arguments in [
        &["check", "--sample=2"][..],
        &["index"],
        &["bench", "--batches", "1"],
        &["doctor", "--read-seconds", "0.1"],
    ] {
        let finished = program::run(twins.dir.forebay(arguments).arg(&twins.remote));
        let said = format!("{}{}", finished.stdout, finished.stderr);
        for part in
            ["s3://bucket/images", "403 AccessDenied", "(request 4442587F)", "grant reading"]
        {
            assert!(
                said.contains(part) && !finished.status.success(),
                "{arguments:?} {part}: {said}"
            );
        }
    }
}

#[test]
fn secrets_are_nowhere_to_be_seen() {
    let twins = Twins::new("s3", "");
    let text = std::fs::read_to_string(&twins.remote).unwrap().replace("anonymous = true, ", "");
    std::fs::write(&twins.remote, text).unwrap();
    let signed = Arc::new(AtomicU64::new(0));
    twins.server.set_weather({
        let signed = Arc::clone(&signed);
        move |request| {
            signed
                .fetch_add(request.headers.contains_key("authorization").into(), Ordering::SeqCst);
            match request.is_listing() {
                true => Fault::None,
                false => Fault::Status(403, None, String::new()),
            }
        }
    });
    let mut said = String::new();
    for arguments in [&["check"][..], &["index"], &["bench", "--json"], &["doctor"]] {
        let mut command = twins.dir.forebay(arguments);
        command
            .env("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
            .env("AWS_SECRET_ACCESS_KEY", SECRET)
            .env("AWS_SESSION_TOKEN", SECRET)
            .env("FOREBAY_LOG", "trace")
            .arg(&twins.remote);
        let finished = program::run(&mut command);
        said.push_str(&finished.stdout);
        said.push_str(&finished.stderr);
    }
    assert!(signed.load(Ordering::SeqCst) > 0 && said.contains("AWS_ACCESS_KEY_ID"), "{said}");
    assert!(!said.contains(SECRET), "{said}");
    for entry in std::fs::read_dir(twins.dir.path("")).unwrap().flatten() {
        let held = std::fs::read(entry.path()).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&held).contains(SECRET), "{:?}", entry.path());
    }
}

#[test]
fn a_url_with_a_secret_or_to_a_metadata_service_is_refused() {
    let twins = Twins::new("s3", "");
    for (url, said) in [
        (format!("https://me:{SECRET}@host/x"), "a user or a password"),
        (format!("https://host/x?token={SECRET}"), "a query"),
        ("http://169.254.169.254/latest".to_owned(), "never holds data"),
        ("http://10.0.0.1/x".to_owned(), "not encrypted"),
        ("ftp://host/x".to_owned(), "s3://bucket/prefix"),
    ] {
        let config = twins.dir.config("refused.toml", &data::image_config(Path::new(&url), ""));
        let finished = program::run(twins.dir.forebay(&["check"]).arg(&config));
        let output = format!("{}{}", finished.stdout, finished.stderr);
        assert!(!finished.status.success() && output.contains(said), "{output}");
        assert!(!output.contains(SECRET), "{output}");
    }
}

/// Two servers may have other data under one URL.
#[test]
fn the_index_of_another_endpoint_is_not_used() {
    let (dir, other) = (TestDir::new(), TestDir::new());
    data::images(&dir.path("images"), 8, 2);
    data::images(&other.path("images"), 12, 2);
    let servers = [Server::of(&dir.path("")), Server::of(&other.path(""))];
    let url = servers[0].url("s3", "images");
    assert_eq!(url, servers[1].url("s3", "images"));
    let config = |server: &Server, index: &str| {
        let path = dir.path("train.toml");
        let text = format!(
            "preset = \"imagenet-eval\"\ndataset.path = {url:?}\nbatch.size = 4\norder.epochs = 1\n{index}\n\
             cpu.policy = \"normal\"\nstorage = {{ anonymous = true, endpoint = \"http://127.0.0.1:{}\" }}\n",
            server.port()
        );
        std::fs::write(&path, text).unwrap();
        path
    };
    // In the folder of this user's indexes.
    for (server, samples) in [(&servers[0], 8), (&servers[1], 12), (&servers[0], 8)] {
        let report = program::run(dir.forebay(&["bench", "--json"]).arg(config(server, ""))).json();
        assert_eq!(report["samples"], samples, "{report}");
    }
    // The server that the environment names is another one, too; and it is not that which the configuration names.
    let plain = dir.path("plain.toml");
    let text = std::fs::read_to_string(config(&servers[0], "")).unwrap();
    let (head, _) = text.split_once("storage = ").unwrap();
    std::fs::write(&plain, format!("{head}storage = {{ anonymous = true, allow_http = true }}\n"))
        .unwrap();
    let of = |server: &Server| format!("http://127.0.0.1:{}", server.port());
    for (variable, server, path, samples) in [
        ("AWS_ENDPOINT_URL", &servers[1], &plain, 12),
        ("AWS_ENDPOINT_URL", &servers[0], &plain, 8),
        ("AWS_ENDPOINT_URL_S3", &servers[1], &plain, 12),
        ("AWS_ENDPOINT_URL_S3", &servers[1], &config(&servers[0], ""), 8),
    ] {
        let mut bench = dir.forebay(&["bench", "--json"]);
        let report = program::run(bench.arg(path).env(variable, of(server))).json();
        assert_eq!(report["samples"], samples, "{variable}: {report}");
    }
    let index = format!("dataset.index = {:?}", dir.path("own.index"));
    program::run(dir.forebay(&["bench", "--json"]).arg(config(&servers[0], &index))).json();
    let said = program::run_to_end(dir.forebay(&["bench"]).arg(config(&servers[1], &index)));
    assert!(said.contains("own.index") && said.contains("another dataset"), "{said}");
}
