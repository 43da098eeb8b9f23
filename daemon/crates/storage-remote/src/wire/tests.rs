//! The crate's own connections, to servers that send exact bytes.

use std::net::{IpAddr, Ipv4Addr};

use object_store::client::HttpRequestBody;
use tokio::runtime::Runtime;

use super::super::scripted_server::{ScriptedServer, Step, answer, ok};
use super::*;

const DEADLINE: Duration = Duration::from_secs(20);

struct TestClient {
    runtime: Runtime,
    wires: Arc<Wires>,
    server: ScriptedServer,
}

/// Result of a request: the status, the received body, and the number of missing bytes.
type Outcome = Result<(u16, String, u64), String>;

impl TestClient {
    fn to(connections: Vec<Vec<Step>>) -> Self {
        let tls = super::super::client::tls(false).unwrap();
        let stall = Duration::from_secs(1);
        let wires = Arc::new(Wires::new(Arc::default(), tls, HeaderMap::new(), stall));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { runtime, wires, server: ScriptedServer::new(connections) }
    }

    fn ask_host(&self, host: &str) -> Result<(Head, Answered), WireError> {
        let url = format!("http://{host}:{}/file", self.server.port);
        let request = http::Request::get(url).body(HttpRequestBody::empty()).unwrap();
        let exchange = self.wires.exchange(&request);
        let within = async { tokio::time::timeout(DEADLINE, exchange).await };
        self.runtime.block_on(within).expect("an answer comes")
    }

    fn ask(&self) -> Outcome {
        self.read(self.ask_host("127.0.0.1"))
    }

    fn read(&self, answer: Result<(Head, Answered), WireError>) -> Outcome {
        let (head, mut answered) = answer.map_err(|error| format!("{error:?}"))?;
        let mut body = Vec::with_capacity(usize::try_from(answered.left_bytes()).unwrap());
        while answered.read(&mut body).map_err(|error| error.to_string())? > 0 {}
        let missing = answered.left_bytes();
        answered.end();
        Ok((head.status.as_u16(), String::from_utf8(body).unwrap(), missing))
    }
}

fn whole(body: &str) -> Outcome {
    Ok((200, body.to_owned(), 0))
}

#[test]
fn connection_is_kept_for_the_next_request() {
    let client = TestClient::to(vec![vec![ok("one"), ok(""), ok("three"), Step::Hold]]);
    assert_eq!([client.ask(), client.ask(), client.ask()], ["one", "", "three"].map(whole));
    assert_eq!(client.server.counts(), [3]);
    let asked = &client.server.asked()[0][0];
    let host = format!("host: 127.0.0.1:{}\r\n", client.server.port);
    assert!(asked.starts_with("GET /file HTTP/1.1\r\n") && asked.contains(&host), "{asked}");
    assert!(asked.contains(&format!("user-agent: {USER_AGENT_TEXT}\r\n")), "{asked}");
}

#[test]
fn kept_connection_that_ends_at_the_next_request_is_replaced_once() {
    let ends = || vec![ok("one"), Step::Listen];
    let client = TestClient::to(vec![ends(), vec![ok("two"), Step::Hold]]);
    assert_eq!([client.ask(), client.ask()], ["one", "two"].map(whole));
    assert_eq!(client.server.counts(), [2, 1]);
    // The end of a new connection is an error: the caller decides on another try.
    let client = TestClient::to(vec![ends(), vec![Step::Listen], vec![ok("three")]]);
    assert_eq!(client.ask(), whole("one"));
    assert!(client.ask().unwrap_err().contains("connection closed"));
    assert_eq!(client.server.counts(), [2, 1]);
}

#[test]
fn ended_idle_connection_is_not_used() {
    let client = TestClient::to(vec![vec![ok("one")], vec![ok("two")]]);
    assert_eq!(client.ask(), whole("one"));
    // Until the end has arrived.
    while client.wires.idle()[0].socket.is_quiet() {}
    assert_eq!(client.ask(), whole("two"));
    assert_eq!(client.server.counts(), [1, 1]);
}

/// Servers send such a response when they close a connection that was idle for too long.
#[test]
fn unsolicited_response_is_not_matched_to_the_next_request() {
    let late = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n";
    for unasked in [&late[..], b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad", b"x"] {
        let first = vec![ok("one"), Step::Say(unasked.to_vec()), Step::Hold];
        let client = TestClient::to(vec![first, vec![ok("two"), Step::Hold]]);
        assert_eq!(client.ask(), whole("one"));
        // Nothing if it arrived with the response: the connection was not kept then.
        while client.wires.idle().first_mut().is_some_and(|wire| wire.socket.is_quiet()) {}
        assert_eq!(client.ask(), whole("two"));
        assert_eq!(client.server.counts(), [1, 1]);
    }
}

#[test]
fn connection_with_bytes_past_the_body_is_not_kept() {
    let more = answer("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none and more");
    let client = TestClient::to(vec![vec![more, Step::Hold], vec![ok("two"), Step::Hold]]);
    assert_eq!([client.ask(), client.ask()], ["one", "two"].map(whole));
    assert_eq!(client.server.counts(), [1, 1]);
}

#[test]
fn bytes_past_the_body_are_not_written_to_a_larger_buffer() {
    let body = "0123456789".repeat(20_000);
    let text = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}more", body.len());
    let client = TestClient::to(vec![vec![answer(text), ok("bad"), Step::Hold], vec![ok("two")]]);
    let (_, mut answered) = client.ask_host("127.0.0.1").unwrap();
    let mut roomy = Vec::with_capacity(1 << 20);
    while answered.read(&mut roomy).unwrap() > 0 {}
    assert!(roomy == body.as_bytes());
    answered.end();
    assert_eq!(client.ask(), whole("two"));
}

#[test]
fn connection_with_an_unread_body_is_not_kept() {
    let most = answer("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n012345678");
    let client = TestClient::to(vec![vec![most, ok("bad"), Step::Hold], vec![ok("two")]]);
    let (_, mut answered) = client.ask_host("127.0.0.1").unwrap();
    let mut body = Vec::with_capacity(10);
    while body.len() < 9 {
        answered.read(&mut body).unwrap();
    }
    answered.end();
    assert_eq!(client.ask(), whole("two"));
    assert_eq!(client.server.counts(), [1, 1]);
}

#[test]
fn connection_past_its_idle_timeout_is_not_used() {
    let client = TestClient::to(vec![vec![ok("one"), ok("bad")], vec![ok("two"), Step::Hold]]);
    assert_eq!(client.ask(), whole("one"));
    let before = Instant::now().checked_sub(IDLE_TIMEOUT).unwrap();
    client.wires.idle()[0].idle_since = before;
    assert_eq!(client.ask(), whole("two"));
}

#[test]
fn connections_serve_one_host_only() {
    let client = TestClient::to(vec![vec![ok("one"), ok("bad")], vec![ok("two"), Step::Hold]]);
    assert_eq!(client.ask(), whole("one"));
    assert_eq!(client.read(client.ask_host("127.0.0.2")), Err(connect_refused(&client)));
    assert_eq!(client.read(client.ask_host("localhost")), whole("two"));
    assert_eq!(client.server.counts(), [1, 1]);
}

fn connect_refused(client: &TestClient) -> String {
    let port = client.server.port;
    let what = format!("connecting to 127.0.0.2:{port}: Connection refused (os error 111)");
    format!("{:?}", WireError::Connect(what))
}

#[test]
fn servers_that_close_after_each_response_are_reconnected() {
    for head in [
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 3\r\n",
        "HTTP/1.1 200 OK\r\nconnection: x, Close\r\nContent-Length: 3\r\n",
        "HTTP/1.0 200 OK\r\nContent-Length: 3\r\n",
    ] {
        let first = vec![answer(format!("{head}\r\none")), Step::Hold];
        let client = TestClient::to(vec![first, vec![ok("two"), Step::Hold]]);
        assert_eq!([client.ask(), client.ask()], ["one", "two"].map(whole), "{head}");
        assert_eq!(client.server.counts(), [1, 1], "{head}");
    }
}

#[test]
fn interim_responses_are_skipped() {
    let interim = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n";
    let all =
        answer(format!("{interim}HTTP/1.1 200 OK\r\nContent-Length: 3\r\nETag: \"1\"\r\n\r\none"));
    let client = TestClient::to(vec![vec![all, ok("two"), Step::Hold]]);
    assert_eq!([client.ask(), client.ask()], ["one", "two"].map(whole));
    assert_eq!(client.server.counts(), [2]);
}

#[test]
fn response_may_arrive_in_pieces_and_before_the_request_is_read() {
    let text = "HTTP/1.1 200 OK\r\nContent-Length: 300\r\nETag: \"1\"\r\n\r\n";
    let body = "0123456789".repeat(30);
    let pieces = format!("{text}{body}").into_bytes();
    let steps = pieces.chunks(7).map(|piece| Step::Say(piece.to_vec()));
    let steps = steps.chain([Step::Listen, ok("two"), Step::Hold]).collect();
    let client = TestClient::to(vec![steps]);
    assert_eq!([client.ask(), client.ask()], [body.as_str(), "two"].map(whole));
    assert_eq!(client.server.counts(), [2]);
}

#[test]
fn header_names_are_case_insensitive() {
    let odd = answer("HTTP/1.1 200 OK\r\ncONTENT-lENGTH:3\r\nEtAg:  \"x\" \r\n\r\none");
    let client = TestClient::to(vec![vec![odd, Step::Hold]]);
    let (head, answered) = client.ask_host("127.0.0.1").unwrap();
    assert_eq!(head.headers["etag"], "\"x\"");
    assert_eq!(client.read(Ok((head, answered))), whole("one"));
}

/// The length of each is missing or given in another way than by one number: no body is read, and `object_store`
/// refuses the response.
#[test]
fn response_of_unknown_length_has_no_body_and_ends_its_connection() {
    for head in [
        "Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n0\r\n\r\n",
        "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n0\r\n\r\n",
        "Content-Length: 3\r\nContent-Length: 3\r\n\r\none",
        "Content-Length: -3\r\n\r\none",
        "Content-Length: 3x\r\n\r\none",
        "Content-Length: 99999999999999999999999\r\n\r\none",
        "\r\none",
    ] {
        let first = vec![answer(format!("HTTP/1.1 200 OK\r\n{head}")), Step::Hold];
        let client = TestClient::to(vec![first, vec![ok("two"), Step::Hold]]);
        assert_eq!([client.ask(), client.ask()], ["", "two"].map(whole), "{head}");
        assert_eq!(client.server.counts(), [1, 1], "{head}");
    }
}

#[test]
fn response_without_content_has_no_body_regardless_of_headers() {
    for status in [204, 304] {
        let text = format!("HTTP/1.1 {status} X\r\nContent-Length: 3\r\n\r\n");
        let client = TestClient::to(vec![vec![answer(text), ok("two"), Step::Hold]]);
        assert_eq!(client.ask(), Ok((status, String::new(), 0)));
        assert_eq!(client.ask(), whole("two"));
    }
}

#[test]
fn malformed_responses_are_refused() {
    let many = "X: y\r\n".repeat(MAX_HEADERS + 1);
    let long = format!("X: {}\r\n", "y".repeat(MAX_HEAD_BYTES));
    for (text, said) in [
        ("ICY 200 OK\r\n\r\n".to_owned(), "not HTTP"),
        ("HTTP/2 200 OK\r\n\r\n".to_owned(), "not HTTP"),
        ("HTTP/1.1 20 OK\r\n\r\n".to_owned(), "not HTTP"),
        // A header that continues on the next line: obsolete, and interpreted differently by different programs.
        ("HTTP/1.1 200 OK\r\nX: y\r\n z\r\n\r\n".to_owned(), "not HTTP"),
        ("HTTP/1.1 200 OK\r\nX : y\r\n\r\n".to_owned(), "not HTTP"),
        ("HTTP/1.1 200 OK\r\nX: y".to_owned(), "closed within the response's headers"),
        (format!("HTTP/1.1 200 OK\r\n{many}\r\n"), "not HTTP"),
        (format!("HTTP/1.1 200 OK\r\n{long}\r\n"), "above 128 KiB"),
    ] {
        let client = TestClient::to(vec![vec![answer(&text)]]);
        let error = client.ask().unwrap_err();
        assert!(error.contains(said), "{said}: {error}");
    }
}

#[test]
fn longest_permitted_head_is_read_with_its_body() {
    let many = format!("X: {}\r\n", "y".repeat(1000)).repeat(MAX_HEADERS - 1);
    let text = format!("HTTP/1.1 200 OK\r\n{many}Content-Length: 3\r\n\r\none");
    let client = TestClient::to(vec![vec![answer(text), Step::Hold]]);
    assert_eq!(client.ask(), whole("one"));
}

#[test]
fn body_that_ends_early_or_stops_is_detected() {
    let short = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort";
    let client = TestClient::to(vec![vec![answer(short)], vec![answer(short), Step::Hold]]);
    assert_eq!(client.ask(), Ok((200, "short".to_owned(), 5)));
    assert_eq!(client.ask(), Err("nothing was received for 1 s".to_owned()));
    // Neither connection is reused.
    assert!(client.wires.idle().is_empty());
}

#[test]
fn buffer_receives_what_fits_and_no_more_than_the_body() {
    let client = TestClient::to(vec![vec![ok("0123456789"), Step::Hold]]);
    let (_, mut answered) = client.ask_host("127.0.0.1").unwrap();
    let mut place = [0; 4];
    assert_eq!(answered.read_now(&mut place).unwrap(), 4);
    assert_eq!((&place, answered.left_bytes()), (b"0123", 6));
    let mut roomy = Vec::with_capacity(1 << 20);
    assert_eq!(answered.read(&mut roomy).unwrap(), 6);
    assert_eq!(answered.read(&mut roomy).unwrap(), 0);
    assert_eq!(roomy, b"456789");
}

#[test]
fn connections_use_the_addresses_of_a_name_in_turn() {
    let client = TestClient::to(vec![vec![ok("one"), Step::Hold], vec![ok("two"), Step::Hold]]);
    let port = client.server.port;
    let addresses = [1, 2, 3].map(|last| SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), port)));
    let known = || (Instant::now(), addresses.to_vec());
    let wires = Arc::clone(&client.wires);
    wires.addresses.known().insert(format!("name:{port}"), known());
    let first = || client.runtime.block_on(wires.addresses.of("name", port)).unwrap()[0];
    let turns = [first(), first(), first(), first()];
    assert_eq!(turns[..3].iter().collect::<std::collections::BTreeSet<_>>().len(), 3, "{turns:?}");
    assert_eq!(turns[3], turns[0]);
    // Two of three refuse, and the third is used; then all refuse, and the name is resolved again.
    for _ in 0..2 {
        client.read(client.ask_host("name")).unwrap();
        wires.idle().clear();
    }
    let closed = SocketAddr::from((Ipv4Addr::new(127, 0, 0, 2), port));
    wires.addresses.known().insert(format!("name:{port}"), (Instant::now(), vec![closed]));
    assert_eq!(client.read(client.ask_host("name")), Err(connect_refused(&client)));
    assert!(wires.addresses.known().is_empty());
}

#[test]
fn metadata_services_are_never_connected_to() {
    let addresses = Addresses::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for host in ["169.254.169.254", "100.100.100.200", "[fd00:ec2::254]", "[fe80::1]"] {
        let error = runtime.block_on(addresses.of(host, 80)).unwrap_err();
        assert!(error.contains("metadata service"), "{host}: {error}");
    }
    let found = runtime.block_on(addresses.of("[::1]", 80)).unwrap();
    assert_eq!(found[0].ip(), "::1".parse::<IpAddr>().unwrap());
}
