//! The user's Python functions as stages: worker processes, the process that starts them, and the transfer of rows.
//!
//! Who runs where:
//! ```text
//!   daemon, work thread   prepares a bundle of rows, waits for the worker, copies results into the rows   pool, worker
//!   spawner               a process of this program, not confined; starts, checks, kills and reaps workers
//!                         and their descendants                                       spawner, children, family
//!   worker                `python -m forebay.worker`; one call at a time                                  (Python)
//! ```
//! Foreign decoders run in the same way, as this program started again ([`foreign`], [`helper`]).
//!
//! `forebay run-sample` starts one more worker itself, on its own terminal ([`foreground`]).
//!
//! A worker shares two things with the daemon: a socket, and an *arena*, memory that only these two map or read. It
//! never accesses a slot of a ring. The arena's size is sealed, and the daemon copies inputs into it and results out of
//! it ([`arena`]), so that a worker cannot fault the daemon through it. All data from a worker is checked ([`reply`]).
//!
//! An arena has room for two calls, and a stage has one thread more than workers: while a worker runs a call, another
//! call is written and the results of a third are read ([`places`]).
//!
//! States of a worker. The thread that has the worker's turn changes them, always a work thread (or the thread that
//! opens the stream, for the probe). One exception: if all workers start at once ([`WorkerStart`]), the pool's start
//! moves each of them from Absent to Starting, before any thread can have a turn; the thread with the first turn reads
//! the first message.
//! ```text
//!   Absent ──start, by the spawner──► Starting ──first message──► Idle ──call──► Called ──reply──► Idle
//!     ▲                                   │ import error             ▲               │ exit, timeout, malformed reply
//!     │                                   ▼                          └───────────────┼── memory within its cap
//!     └─────────── killed and reaped by the spawner ◄────────────────────────────────┘   (beyond it: replaced)
//! ```
//! Only the worker changes its scheduling class, once, and only downward. A worker starts in the spawner's class, the
//! trainer's. It takes the class of the stage's workers before it imports anything, or, if it was started with
//! [`WorkerStart::AtOnceInNormalClass`], after the import and before its first message: with all its threads and all
//! processes that it has started. So a worker that is Idle or Called has the lower class, and a replacement never has a
//! higher one, since only the pool's start requests that.
//!
//! States of a row of a bundle. The daemon owns it all the time; the worker has copies:
//! ```text
//!   Prepared ──in a call──► Called ──reply──► Done, or Raised (the user's exception)
//!      ▲                      │ the worker was lost
//!      │     not being called │   being called (the arena's first word)
//!      └──────────────────────┴────► Suspect: called alone ──lost alone, three times──► Crashes (a bad sample)
//!                                                         ──timeout, twice in total──► Late
//! ```
//! A function on complete batches is called the same way, with a batch in place of a row.
//!
//! The function depends on (sample, rng) only, so a repeated call of a row gives the same bytes. Its side effects
//! happen at least once.
//!
//! **No process is left.** The spawner ends when the daemon's end of its socket closes, however the daemon ends, after
//! it has killed its workers and their descendants, in any group or session. A worker gets SIGKILL from the kernel when
//! the spawner dies. Every wait for them has a time limit: a process that hangs in the kernel ends when it can.
//!
//! **No line is lost at a normal end.** A worker that has printed a part of a line says so in the arena. Before its end,
//! the daemon closes its side of that worker's socket, for which the worker logs the part, and waits a short time.
//!
//! **A spawner that dies** ends the daemon with a special status, so that it is restarted with the right to start
//! processes ([`on_lost_spawner`]).

#![forbid(unsafe_code)]

mod arena;
mod bundle;
mod call;
mod children;
mod cpu_times;
mod family;
mod figures;
mod foreground;
mod foreign;
mod helper;
mod interpreter;
mod own_program;
mod places;
mod pool;
mod process;
mod reply;
mod spawner;
mod spec;
mod worker;

pub use arena::{Arena, MAX_KEPT_BYTES};
pub use bundle::BundleSize;
pub use call::{CallBuffer, Number, RowSeed};
pub use figures::{CallFigures, FunctionTime, HotSpot};
pub use foreground::is_foreground_interrupted;
pub use foreign::{ForeignOutcome, ForeignPool, ForeignReply, ForeignRequest, ForeignSpec};
pub use helper::{Foreign, HelperError, HelperOutput, serve_helper};
pub use pool::{LOG_OF_STARTS, Lost, Outcome, Pool, Probed, Source};
pub use reply::{Declared, DeclaredKind, Raised, ReplyKind, ReplyValue, RowTime};
pub use spawner::{end_workers, on_lost_spawner, serve_spawner};
pub use spec::{PoolSpec, WorkerClass, WorkerStart};
