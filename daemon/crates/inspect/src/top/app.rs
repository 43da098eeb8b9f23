//! The watched daemons, which come and go, the chosen one, and the keys.

use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::super::sanitize::sanitize;
use super::history::History;
use super::screen::Screen;
use super::snapshot::{Key, Snapshot, sort};
use super::watch::{Answer, search_sockets, watch};

/// The time after which a lost daemon at an automatic socket is removed if others are left.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(30);

/// Which daemons to watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The daemons at these sockets, and their successors.
    Named(Vec<PathBuf>),
    /// All of this user's daemons at automatic sockets.
    Automatic,
}

/// Whether to continue after a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    Continue,
    Quit,
}

/// A watched daemon.
#[derive(Debug)]
struct Watched {
    /// A unique number, unlike the position in the list.
    number: usize,
    socket: PathBuf,
    answers: Receiver<Answer>,
    history: History,
    lost: Option<(String, Instant)>,
    /// Found while a named daemon is lost; shown if it turns out to be its successor.
    is_candidate: bool,
}

/// Stream, trainer, rank and world size of a session, which a restarted daemon has in common with its predecessor.
type Identity = (String, String, u32, u32);

impl Watched {
    fn identities(&self) -> Vec<Identity> {
        let window = self.history.window();
        let sessions = window.map_or_else(Vec::new, |window| window.figures.sessions);
        sessions
            .into_iter()
            .map(|one| (one.stream, one.trainer, one.rank, one.world_size))
            .collect()
    }

    fn snapshots(&self) -> Vec<Snapshot> {
        let since = |since: &Instant| since.elapsed().as_secs_f64();
        let lost = self.lost.as_ref().map(|(reason, at)| (reason.clone(), since(at)));
        let socket = sanitize(&self.socket.display().to_string());
        Snapshot::of(self.number, &socket, &self.history, lost.as_ref())
    }
}

/// The state of the screen.
#[derive(Debug)]
pub(super) struct App {
    wanted: Wanted,
    every: Duration,
    begun: Instant,
    watched: Vec<Watched>,
    next_number: usize,
    found: Option<Receiver<Vec<PathBuf>>>,
    chosen: Option<Key>,
    is_overview: bool,
    /// Whether Esc returns to the table.
    was_opened: bool,
    has_help: bool,
}

impl App {
    pub(super) fn new(wanted: Wanted, every: Duration, is_overview: bool) -> anyhow::Result<Self> {
        let mut app = Self {
            wanted: wanted.clone(),
            every,
            begun: Instant::now(),
            watched: Vec::new(),
            next_number: 0,
            found: None,
            chosen: None,
            is_overview,
            was_opened: false,
            has_help: false,
        };
        match wanted {
            Wanted::Named(sockets) => {
                for socket in &sockets {
                    app.watch(socket, false)?;
                }
            }
            Wanted::Automatic => app.found = Some(search_sockets()?),
        }
        Ok(app)
    }

    fn watch(&mut self, socket: &Path, is_candidate: bool) -> anyhow::Result<()> {
        let answers = watch(socket, self.every)?;
        self.add(socket.to_owned(), answers, is_candidate);
        Ok(())
    }

    fn add(&mut self, socket: PathBuf, answers: Receiver<Answer>, is_candidate: bool) {
        let (number, history) = (self.next_number, History::default());
        self.watched.push(Watched { number, socket, answers, history, lost: None, is_candidate });
        self.next_number += 1;
    }

    /// Processes the responses since the last call; whether there were any.
    pub(super) fn take_in(&mut self) -> anyhow::Result<bool> {
        let mut is_new = self.find()?;
        for one in &mut self.watched {
            while let Ok(answer) = one.answers.try_recv() {
                is_new = true;
                match answer.report {
                    Ok(report) => {
                        one.lost = None;
                        one.history.add(answer.at.saturating_duration_since(self.begun), *report);
                    }
                    Err(reason) => {
                        let since = one.lost.take().map_or(answer.at, |(_, since)| since);
                        one.lost = Some((reason, since));
                    }
                }
            }
        }
        if is_new {
            self.put_in_place();
        }
        Ok(is_new)
    }

    /// Watches new sockets. With named daemons, only while one of them is lost, and only sockets in its folder: a
    /// restarted private daemon has a different name.
    fn find(&mut self) -> anyhow::Result<bool> {
        let gone: Vec<PathBuf> = self
            .watched
            .iter()
            .filter(|one| one.lost.is_some() && !one.is_candidate)
            .filter_map(|one| one.socket.parent().map(Path::to_owned))
            .collect();
        let is_automatic = self.wanted == Wanted::Automatic;
        if !is_automatic && gone.is_empty() {
            self.watched.retain(|one| !one.is_candidate);
            self.found = None;
            return Ok(false);
        }
        let found = match &self.found {
            Some(found) => found,
            None => self.found.insert(search_sockets()?),
        };
        let Ok(sockets) = found.try_recv() else { return Ok(false) };
        let mut is_new = false;
        for socket in sockets {
            let is_known = self.watched.iter().any(|one| one.socket == socket);
            let is_beside = || gone.iter().any(|folder| socket.starts_with(folder));
            if !is_known && (is_automatic || is_beside()) {
                self.watch(&socket, !is_automatic)?;
                is_new = true;
            }
        }
        Ok(is_new)
    }

    /// Replaces a lost daemon by one that serves the same rank; removes daemons that have been lost for long.
    fn put_in_place(&mut self) {
        let mut replaced = Vec::new();
        for gone in self.watched.iter().filter(|one| one.lost.is_some() && !one.is_candidate) {
            let served = gone.identities();
            let successor = self.watched.iter().find(|one| {
                one.lost.is_none()
                    && one.identities().iter().any(|identity| served.contains(identity))
            });
            replaced.extend(successor.map(|one| (gone.number, one.number)));
        }
        for (gone, successor) in replaced {
            self.watched.retain(|one| one.number != gone);
            for one in self.watched.iter_mut().filter(|one| one.number == successor) {
                one.is_candidate = false;
            }
            if let Some(chosen) = self.chosen.as_mut().filter(|chosen| chosen.daemon == gone) {
                *chosen = Key { daemon: successor, session: None };
            }
        }
        // A lost candidate is found again if it comes back.
        self.watched.retain(|one| !(one.is_candidate && one.lost.is_some()));
        if self.wanted == Wanted::Automatic {
            let is_old = |one: &Watched| {
                one.lost.as_ref().is_some_and(|(_, since)| since.elapsed() >= FORGOTTEN_AFTER)
            };
            if !self.watched.iter().all(is_old) {
                self.watched.retain(|one| !is_old(one));
            }
        }
    }

    /// The screen to draw.
    pub(super) fn screen(&mut self) -> Screen {
        let shown = self.watched.iter().filter(|one| !one.is_candidate);
        let mut snapshots: Vec<Snapshot> = shown.flat_map(Watched::snapshots).collect();
        sort(&mut snapshots);
        let chosen = self.chosen.as_ref();
        let same = snapshots.iter().position(|snapshot| Some(&snapshot.key) == chosen);
        // The daemon's session may have been replaced.
        let near = || {
            snapshots
                .iter()
                .position(|snapshot| Some(snapshot.key.daemon) == chosen.map(|key| key.daemon))
        };
        let selected = same.or_else(near).unwrap_or(0);
        self.chosen = snapshots.get(selected).map(|snapshot| snapshot.key.clone());
        Screen {
            snapshots,
            selected,
            is_overview: self.is_overview,
            has_help: self.has_help,
            why_empty: "no running daemon of this user was found; searching. For another socket: forebay top SOCKET"
                .to_owned(),
        }
    }

    /// Handles a key.
    pub(super) fn press(&mut self, key: KeyEvent) -> Next {
        if key.kind == KeyEventKind::Release {
            return Next::Continue;
        }
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c' | 'd') if is_control => return Next::Quit,
            KeyCode::Char('q' | 'Q') => return Next::Quit,
            KeyCode::Esc if self.has_help => self.has_help = false,
            KeyCode::Esc if self.was_opened => {
                (self.is_overview, self.was_opened) = (true, false);
            }
            KeyCode::Esc => return Next::Quit,
            KeyCode::Char('?' | 'h') => self.has_help = !self.has_help,
            KeyCode::Tab | KeyCode::Right | KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::BackTab | KeyCode::Left | KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::Char('a') => {
                (self.is_overview, self.was_opened) = (!self.is_overview, false);
            }
            KeyCode::Enter if self.is_overview => {
                (self.is_overview, self.was_opened) = (false, true);
            }
            _ => {}
        }
        Next::Continue
    }

    /// Chooses the next or the previous one; wraps around at the ends.
    fn step(&mut self, by: isize) {
        let screen = self.screen();
        let count = screen.snapshots.len();
        if count > 0 {
            let next = (screen.selected + count).saturating_add_signed(by) % count;
            self.chosen = Some(screen.snapshots[next].key.clone());
        }
    }
}

#[cfg(test)]
mod tests;
