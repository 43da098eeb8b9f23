//! Tests of keys and of daemons that replace each other.

use std::sync::mpsc::sync_channel;

use super::super::testing::Script;
use super::*;

/// An app with simulated daemons.
fn app(daemons: &[(&str, Script)], wanted: Wanted) -> App {
    let mut app = App::new(Wanted::Named(Vec::new()), Duration::from_millis(500), false).unwrap();
    app.wanted = wanted;
    for (socket, script) in daemons {
        add(&mut app, socket, script);
    }
    app
}

fn add(app: &mut App, socket: &str, script: &Script) {
    let (sender, answers) = sync_channel(4);
    let report = Ok(Box::new(script.report()));
    sender.send(Answer { at: Instant::now(), report }).unwrap();
    // The sender is dropped: the app continues without further responses.
    app.add(socket.into(), answers, false);
}

fn lose(app: &mut App, socket: &str, since: Instant) {
    let one = app.watched.iter_mut().find(|one| one.socket == Path::new(socket)).unwrap();
    one.lost = Some(("connect: ECONNREFUSED".to_owned(), since));
}

fn ranks(count: u32) -> Vec<(&'static str, Script)> {
    let sockets = ["/run/0.sock", "/run/1.sock", "/run/2.sock"];
    sockets
        .into_iter()
        .zip(0..count)
        .map(|(socket, rank)| (socket, Script { rank, ..Script::default() }))
        .collect()
}

fn press(app: &mut App, code: KeyCode) -> Next {
    app.press(KeyEvent::new(code, KeyModifiers::NONE))
}

fn shown_rank(app: &mut App) -> Option<u32> {
    let screen = app.screen();
    screen.snapshots.get(screen.selected)?.session().map(|session| session.report.rank)
}

#[test]
fn keys_move_open_and_quit() {
    let mut app = app(&ranks(3), Wanted::Automatic);
    app.put_in_place();
    for one in &mut app.watched {
        let answer = one.answers.try_recv().unwrap();
        one.history.add(Duration::ZERO, *answer.report.unwrap());
    }
    assert_eq!(shown_rank(&mut app), Some(0));
    press(&mut app, KeyCode::Tab);
    press(&mut app, KeyCode::Right);
    assert_eq!(shown_rank(&mut app), Some(2));
    press(&mut app, KeyCode::Down);
    assert_eq!(shown_rank(&mut app), Some(0));
    press(&mut app, KeyCode::BackTab);
    assert_eq!(shown_rank(&mut app), Some(2));
    // The table, a daemon opened from it, and back.
    press(&mut app, KeyCode::Char('a'));
    assert!(app.screen().is_overview);
    press(&mut app, KeyCode::Enter);
    assert!(!app.screen().is_overview);
    assert_eq!(press(&mut app, KeyCode::Esc), Next::Continue);
    assert!(app.screen().is_overview);
    press(&mut app, KeyCode::Char('?'));
    assert!(app.screen().has_help);
    assert_eq!(press(&mut app, KeyCode::Esc), Next::Continue);
    assert!(!app.screen().has_help);
    assert_eq!(press(&mut app, KeyCode::Esc), Next::Quit);
    assert_eq!(press(&mut app, KeyCode::Char('q')), Next::Quit);
    assert_eq!(app.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), Next::Quit);
}

#[test]
fn keys_do_nothing_without_a_daemon() {
    let mut app = app(&[], Wanted::Named(Vec::new()));
    press(&mut app, KeyCode::Tab);
    press(&mut app, KeyCode::Enter);
    assert!(app.screen().snapshots.is_empty());
    assert_eq!(press(&mut app, KeyCode::Char('q')), Next::Quit);
}

#[test]
fn restarted_daemon_replaces_its_predecessor() {
    let mut app = app(&ranks(2), Wanted::Named(vec!["/run/0.sock".into()]));
    app.take_in().unwrap();
    press(&mut app, KeyCode::Tab);
    lose(&mut app, "/run/1.sock", Instant::now());
    // A daemon of a different rank does not replace it.
    add(&mut app, "/run/8.sock", &Script { pid: 8, rank: 8, ..Script::default() });
    add(&mut app, "/run/9.sock", &Script { pid: 9, rank: 1, ..Script::default() });
    app.watched.iter_mut().skip(2).for_each(|one| one.is_candidate = true);
    app.take_in().unwrap();
    let sockets: Vec<&Path> = app
        .watched
        .iter()
        .filter(|one| !one.is_candidate)
        .map(|one| one.socket.as_path())
        .collect();
    assert_eq!(sockets, [Path::new("/run/0.sock"), Path::new("/run/9.sock")]);
    assert_eq!(shown_rank(&mut app), Some(1));
}

#[test]
fn lost_daemon_is_removed_only_if_others_are_left() {
    let long_ago = Instant::now().checked_sub(FORGOTTEN_AFTER * 2).unwrap();
    let mut alone = app(&ranks(1), Wanted::Automatic);
    alone.take_in().unwrap();
    lose(&mut alone, "/run/0.sock", long_ago);
    alone.put_in_place();
    assert!(alone.screen().snapshots[0].lost.is_some());
    let mut two = app(&ranks(2), Wanted::Automatic);
    two.found = Some(sync_channel(1).1);
    two.take_in().unwrap();
    lose(&mut two, "/run/0.sock", long_ago);
    two.put_in_place();
    assert_eq!((two.screen().snapshots.len(), shown_rank(&mut two)), (1, Some(1)));
}
