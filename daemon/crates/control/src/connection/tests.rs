//! One connection without the rest of a daemon.

use std::future::Future;

use forebay_protocol::frames::Start;

use super::*;
use crate::host::Patience;

#[test]
fn long_texts_are_split_between_characters_without_loss() {
    let text = "aé".repeat(60_000);
    let parts = in_parts(&text);
    assert!(parts.len() > 2);
    let mut whole = String::new();
    for (index, part) in parts.iter().enumerate() {
        let DaemonFrame::StatsPart { last, text } = part else { panic!("a part of stats") };
        assert_eq!(*last, index + 1 == parts.len());
        forebay_protocol::wire::encode(part).unwrap();
        whole.push_str(text);
    }
    assert_eq!(whole, text);
    assert_eq!(in_parts("").len(), 1);
}

fn on_one_thread(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test);
}

/// A private daemon whose scan of the dataset never ends.
fn endless_scan() -> Rc<Host> {
    Rc::new(Host::private(Box::new(|_, _| Box::pin(std::future::pending()))))
}

#[test]
fn trainer_that_dies_during_the_scan_is_detected_while_its_socket_stays_open() {
    on_one_thread(async {
        let (daemon, client) = Connection::pair().unwrap();
        let mut trainer = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&trainer);
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
        let hello = ClientFrame::Hello { protocol: PROTOCOL_VERSION, release: "test".to_owned() };
        client.send(&hello, &[std::os::fd::AsFd::as_fd(&pidfd)]).unwrap();
        let start = Start {
            config: forebay_protocol::frames::ConfigSource::File(String::new()),
            overrides: Vec::new(),
            local_world_size: 1,
            local_rank: 0,
        };
        client.send(&ClientFrame::Start(start), &[]).unwrap();
        let served = tokio::task::spawn_local(serve_connection(daemon, endless_scan()));
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!served.is_finished());
        trainer.kill().unwrap();
        trainer.wait().unwrap();
        tokio::time::timeout(Duration::from_secs(30), served).await.unwrap().unwrap();
    });
}

#[test]
fn flood_of_doorbells_does_not_block_other_tasks() {
    const RUNG: u64 = 2 * MESSAGES_PER_TURN as u64;
    let (daemon, client) = Connection::pair().unwrap();
    let watched = std::os::fd::AsFd::as_fd(&daemon).try_clone_to_owned().unwrap();
    for _ in 0..RUNG {
        client.ring().unwrap();
    }
    on_one_thread(async {
        let served = tokio::task::spawn_local(serve_connection(daemon, endless_scan()));
        // A doorbell is one byte.
        let waiting = || rustix::io::ioctl_fionread(&watched).unwrap();
        while waiting() == RUNG {
            tokio::task::yield_now().await;
        }
        assert!(waiting() > 0, "all were read before any other task had a turn");
        served.abort();
    });
}

/// The logged reason of a connection with this client.
fn ending_with(impatient: Patience, client: impl AsyncFnOnce(Connection)) -> String {
    let mut told = String::new();
    on_one_thread(async {
        let (daemon, end) = Connection::pair().unwrap();
        let mut host = Host::private(Box::new(|_, _| Box::pin(std::future::pending())));
        host.patience = impatient;
        let host = Rc::new(host);
        let (ended, ()) =
            tokio::join!(converse(daemon, Rc::clone(&host), Rc::default()), client(end));
        told = ended.unwrap_err().to_string();
        assert_eq!(host.connections.get(), 0);
    });
    told
}

const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_millis(40);

async fn until_closed(client: &Connection) {
    while !matches!(client.receive::<DaemonFrame>(), Err(SocketError::Closed)) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn silent_client_is_disconnected_with_that_reason() {
    let impatient = Patience { greeting: SHORT, sending: LONG };
    let told = ending_with(impatient, async |client| until_closed(&client).await);
    assert_eq!(told, "the client sent nothing for 40ms after connecting");
}

#[test]
fn client_that_does_not_read_is_disconnected_with_that_reason() {
    let impatient = Patience { greeting: LONG, sending: SHORT };
    let told = ending_with(impatient, async |client| {
        let hello = ClientFrame::Hello { protocol: PROTOCOL_VERSION, release: "test".to_owned() };
        client.send(&hello, &[]).unwrap();
        // The answers fill the client's socket, then the requests fill the daemon's.
        while !matches!(client.send(&ClientFrame::Stats, &[]), Err(SocketError::Closed)) {
            tokio::task::yield_now().await;
        }
    });
    assert_eq!(told, "the client did not read its socket for 40ms");
}

#[test]
fn client_that_reads_late_gets_every_answer() {
    on_one_thread(async {
        let (daemon, client) = Connection::pair().unwrap();
        let served = tokio::task::spawn_local(serve_connection(daemon, endless_scan()));
        let hello = ClientFrame::Hello { protocol: PROTOCOL_VERSION, release: "test".to_owned() };
        client.send(&hello, &[]).unwrap();
        // The answers fill the client's socket, then the requests fill the daemon's.
        let (mut asked, mut refused) = (0, 0);
        while refused < 20 {
            match client.send(&ClientFrame::Stats, &[]) {
                Ok(()) => (asked, refused) = (asked + 1, 0),
                Err(SocketError::Call { .. }) => {
                    refused += 1;
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                Err(error) => panic!("{error}"),
            }
        }
        let mut answered = 0;
        while answered < asked {
            match client.receive::<DaemonFrame>().unwrap() {
                Incoming::Frame(DaemonFrame::StatsPart { last, .. }, _) => {
                    answered += u32::from(last);
                }
                Incoming::Frame(frame, _) => assert!(matches!(frame, DaemonFrame::Welcome { .. })),
                Incoming::Doorbell => panic!("there is no session"),
                Incoming::Empty => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
        served.abort();
    });
}

#[test]
fn time_limits_of_clients_match_the_design() {
    let Host { patience, .. } = Host::private(Box::new(|_, _| Box::pin(std::future::pending())));
    let seconds = (patience.greeting.as_secs(), patience.sending.as_secs());
    assert_eq!(seconds, (10, 5));
    let design = include_str!("../../../../../docs/design/errors.md");
    assert!(design.contains("| a client's first frame, room in its socket | 10 s, 5 s |"));
}
