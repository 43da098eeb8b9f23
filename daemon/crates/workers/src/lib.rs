//! The user's own Python as a stage: worker processes, the process that starts them, and how rows reach them.
//!
//! Who runs where:
//! ```text
//!   daemon, work thread   prepares a bundle of rows, waits for the worker, copies results into the rows   pool, worker
//!   spawner               a process of this program, not confined; starts, kills and reaps workers        spawner
//!   worker                `python -m forebay.worker`; one call at a time                                  (Python)
//! ```
//! `forebay run-sample` starts one worker more itself, with its own terminal ([`foreground`]).
//!
//! A worker shares two things with the daemon: a socket, and an *arena*, memory that only these two map or read. It never
//! has a slot of a ring. Its size is sealed, and the daemon copies inputs into it and results out of it ([`arena`]), so that
//! nothing that a worker does to it can fault the daemon. All that a worker sends is checked ([`reply`]).
//!
//! An arena has room for two calls, and a stage one thread more than workers: a call is written and the results of another
//! are read while a worker is called ([`places`]).
//!
//! A worker's states. Whoever has the worker's turn moves it, always a work thread (or the thread that opens the
//! stream, for the probe):
//! ```text
//!   Absent ──start, by the spawner──► Starting ──first message──► Idle ──call──► Called ──reply──► Idle
//!     ▲                                   │ import error             ▲               │ exit, time-out, rubbish
//!     │                                   ▼                          └───────────────┼── memory within its cap
//!     └─────────── killed and reaped by the spawner ◄────────────────────────────────┘   (beyond it: replaced)
//! ```
//! A row of a bundle. The daemon owns it all the time; the worker has copies:
//! ```text
//!   Prepared ──in a call──► Called ──reply──► Done, or Raised (the user's exception)
//!      ▲                      │ the worker was lost
//!      │     not under call   │   under call (the arena's first word)
//!      └──────────────────────┴────► Suspect: called alone ──lost alone, three times──► Crashes (a bad sample)
//! ```
//! A function on complete batches is called the same way, with a batch in the place of a row.
//!
//! The function is one of (sample, rng), so a row that is called again gives the same bytes. Its side effects happen at
//! least once.
//!
//! **Nothing is left behind.** The spawner ends when the daemon's end of its socket closes, however the daemon ends, and
//! kills the process groups of its workers before. A worker gets SIGKILL from the kernel when the spawner dies.

#![forbid(unsafe_code)]

mod arena;
mod call;
mod cpu_times;
mod figures;
mod foreground;
mod interpreter;
mod places;
mod pool;
mod process;
mod reply;
mod spawner;
mod spec;
mod worker;

pub use arena::Arena;
pub use call::{CallBuffer, Number, RowSeed};
pub use figures::{CallFigures, FunctionTime, HotSpot};
pub use foreground::is_foreground_interrupted;
pub use pool::{Lost, Outcome, Pool, Probed, Source};
pub use reply::{Declared, DeclaredKind, Raised, ReplyKind, ReplyValue, RowTime};
pub use spawner::{end_workers, serve_spawner};
pub use spec::{PoolSpec, WorkerClass};
