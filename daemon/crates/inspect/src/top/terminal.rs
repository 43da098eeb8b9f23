//! The terminal while `top` uses it: raw, on the alternate screen, without a cursor. It is restored however `top` ends:
//! by a key, a signal, an error or a panic. Leaving the alternate screen is the last output.
//!
//! A separate thread handles signals and hang-up: crossterm keeps reading from a closed terminal.

use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};

use super::app::{App, Next};
use super::screen::draw;

/// The polling interval for keys, responses and signals.
const TURN: Duration = Duration::from_millis(100);
/// The time for the main thread to end by itself.
const GRACE: Duration = Duration::from_millis(500);
/// Whether a signal requested the end.
static ENDS: AtomicBool = AtomicBool::new(false);
/// The redraw interval: displayed seconds advance without responses.
const REDRAW: Duration = Duration::from_millis(500);

/// Dropping it restores the terminal.
struct Held;

impl Held {
    fn take() -> anyhow::Result<Self> {
        enable_raw_mode()
            .context("the terminal cannot be made raw; forebay top --once needs none")?;
        // Created before the rest, so that an error restores the terminal.
        let held = Self;
        execute!(io::stdout(), EnterAlternateScreen, Hide)
            .context("cannot write to the terminal")?;
        Ok(held)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        give_back();
    }
}

fn give_back() {
    // Errors are ignored: the terminal may be gone.
    let _ = disable_raw_mode();
    let _ = execute!(io::stdout(), Show, LeaveAlternateScreen);
    let _ = io::stdout().flush();
}

/// Restores the terminal before a panic's message is written, and ends the process: a thread that has panicked no
/// longer responds.
fn give_back_at_a_panic() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        give_back();
        before(panic);
        std::process::exit(101);
    }));
}

/// A descriptor for the signals that end the process. Call it before threads are started: they inherit the signal mask.
pub(super) fn signals_that_end() -> anyhow::Result<SignalFd> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT] {
        signals.add(signal);
    }
    signals.thread_block().context("cannot hold signals back")?;
    SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
        .context("cannot read signals")
}

/// Ends the process at a signal, or if the terminal is gone.
fn guard(signals: &SignalFd) {
    let (input, output) = (io::stdin(), io::stdout());
    loop {
        // A hang-up is always reported.
        let mut watched = vec![
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(output.as_fd(), PollFlags::empty()),
        ];
        if input.is_terminal() {
            watched.push(PollFd::new(input.as_fd(), PollFlags::empty()));
        }
        let told = poll(&mut watched, PollTimeout::NONE);
        let happened = watched.iter().any(|one| one.revents().is_some_and(|told| !told.is_empty()));
        match told {
            Err(nix::errno::Errno::EINTR) => {}
            Ok(_) if !happened => {}
            _ => break,
        }
    }
    // Relaxed: the flag publishes nothing else.
    ENDS.store(true, Ordering::Relaxed);
    std::thread::sleep(GRACE);
    give_back();
    std::process::exit(0);
}

/// Shows the screen until a key or a signal ends it.
pub(super) fn show(app: &mut App, signals: SignalFd) -> anyhow::Result<()> {
    give_back_at_a_panic();
    let held = Held::take()?;
    std::thread::Builder::new()
        .name("forebay-guard".to_owned())
        .spawn(move || guard(&signals))
        .context("cannot start a thread")?;
    let outcome = turns(app);
    drop(held);
    outcome
}

fn turns(app: &mut App) -> anyhow::Result<()> {
    let lost = "cannot write to the terminal";
    let mut terminal = Terminal::new(CrosstermBackend::new(io::stdout())).context(lost)?;
    let mut drawn = Instant::now();
    let mut is_new = true;
    loop {
        is_new |= app.take_in()?;
        if is_new || drawn.elapsed() >= REDRAW {
            let screen = app.screen();
            terminal.draw(|frame| draw(frame, &screen)).context(lost)?;
            (drawn, is_new) = (Instant::now(), false);
        }
        if ENDS.load(Ordering::Relaxed) {
            return Ok(());
        }
        // An interrupted wait counts as a wait without events.
        let has_event = match event::poll(TURN) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => false,
            other => other.context("cannot read the terminal")?,
        };
        if !has_event {
            continue;
        }
        match event::read().context("cannot read the terminal")? {
            Event::Key(key) => {
                if app.press(key) == Next::Quit {
                    return Ok(());
                }
                is_new = true;
            }
            Event::Resize(..) => is_new = true,
            _ => {}
        }
    }
}
