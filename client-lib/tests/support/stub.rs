//! A minimal daemon for the client's tests: one scripted session over the protocol crate.
//!
//! Batch `b` of epoch `e` has `index` = `e * 1_000_000 + b * rows + row`, and a ragged `text` whose row `r` has `r % 3`
//! elements of value `r`. It checks returns in the same way as the real daemon.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use forebay_protocol::frames::{
    Attached, ClientFrame, DaemonFrame, PROTOCOL_VERSION, Positioned, RestartPolicy,
};
use forebay_protocol::identity::Identity;
use forebay_protocol::ids::{BatchNumber, Position};
use forebay_protocol::layout::SlotLayout;
use forebay_protocol::lease::{SlotState, SlotTable};
use forebay_protocol::publish::{Descriptor, PublishWriter, TensorEntry, publish_words};
use forebay_protocol::returns::{ReturnReader, return_words};
use forebay_protocol::segment::{Access, Mapping, Segment};
use forebay_protocol::slots::{RowWriter, split_rows};
use forebay_protocol::socket::{Connection, Incoming, Listener};
use forebay_protocol::tensor::{DType, Extent, MAX_RANK, Padding, TensorSpec};
use nix::poll::{PollFd, PollFlags, poll};

/// The stub's behaviour.
#[derive(Clone)]
pub(crate) struct Script {
    pub(crate) rows: u32,
    pub(crate) slots: u16,
    pub(crate) hold: u16,
    pub(crate) batches_per_epoch: u64,
    pub(crate) epochs: Option<u64>,
    pub(crate) protocol: u32,
    /// Corrupts every descriptor.
    pub(crate) spoil: Option<fn(&mut Descriptor)>,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            rows: 4,
            slots: 5,
            hold: 3,
            batches_per_epoch: 6,
            epochs: Some(3),
            protocol: PROTOCOL_VERSION,
            spoil: None,
        }
    }
}

/// The stub's observations.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) seeks: Vec<Position>,
    pub(crate) goodbye: bool,
    pub(crate) pidfd: bool,
    pub(crate) violations: Vec<String>,
    pub(crate) still_held: usize,
}

/// A running stub.
pub(crate) struct Stub {
    pub(crate) path: PathBuf,
    folder: tempfile::TempDir,
    thread: JoinHandle<Report>,
}

impl Stub {
    pub(crate) fn start(script: Script) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stub.sock");
        let listener = Listener::bind(&path).unwrap();
        let thread = std::thread::spawn(move || {
            let connection = loop {
                match listener.accept().unwrap() {
                    Some(connection) => break connection,
                    None => std::thread::sleep(std::time::Duration::from_millis(1)),
                }
            };
            Session::new(connection, script).run()
        });
        Self { path, folder, thread }
    }

    /// Waits for the session's end.
    pub(crate) fn finish(self) -> Report {
        self.thread.join().unwrap()
    }
}

struct Serving {
    layout: Arc<SlotLayout>,
    rows: Vec<Vec<RowWriter>>,
    publish: PublishWriter<Mapping>,
    returns: ReturnReader<Mapping>,
    table: SlotTable,
}

struct Session {
    connection: Connection,
    script: Script,
    report: Report,
    serving: Option<Serving>,
    epoch: u64,
    batch: u64,
    serial: u64,
}

pub(crate) fn tensors() -> Vec<TensorSpec> {
    let ragged = TensorSpec {
        extent: Extent::Ragged { max_row_bytes: 64, compact: false },
        padding: Some(Padding { multiple_of: 4, value_bits: 7_f64.to_bits() }),
        ..TensorSpec::dense("text", DType::U16, &[])
    };
    vec![
        TensorSpec::dense("index", DType::I64, &[]),
        TensorSpec::dense("image", DType::U8, &[3, 5]),
        ragged,
    ]
}

impl Session {
    fn new(connection: Connection, script: Script) -> Self {
        Self {
            connection,
            script,
            report: Report::default(),
            serving: None,
            epoch: 0,
            batch: 0,
            serial: 0,
        }
    }

    fn run(mut self) -> Report {
        while self.read_frames() {
            self.read_returns();
            self.publish_what_fits();
            let watched = PollFd::new(self.connection.as_fd(), PollFlags::POLLIN);
            poll(&mut [watched], 2u8).unwrap();
        }
        self.read_returns();
        self.report.still_held =
            self.serving.as_ref().map_or(0, |serving| serving.table.count(SlotState::Published));
        self.report
    }

    /// False: the client has ended.
    fn read_frames(&mut self) -> bool {
        loop {
            match self.connection.receive::<ClientFrame>() {
                Ok(Incoming::Frame(frame, descriptors)) => self.answer(frame, descriptors.len()),
                Ok(Incoming::Doorbell) => {}
                Ok(Incoming::Empty) => return true,
                Err(_) => return false,
            }
        }
    }

    fn send(&self, frame: &DaemonFrame) {
        let _ = self.connection.send(frame, &[]);
    }

    fn answer(&mut self, frame: ClientFrame, descriptors: usize) {
        match frame {
            ClientFrame::Hello { .. } => {
                self.report.pidfd = descriptors == 1;
                self.send(&DaemonFrame::Welcome {
                    protocol: self.script.protocol,
                    release: "stub".into(),
                    streams: vec!["train".into()],
                });
            }
            ClientFrame::Attach(attach) => {
                self.go_to(attach.position);
                self.attach();
            }
            ClientFrame::Seek { serial, position, .. } => {
                self.report.seeks.push(position);
                self.serial = serial;
                self.go_to(position);
                let place = self.place();
                self.send(&DaemonFrame::Positioned(place));
            }
            ClientFrame::Goodbye => self.report.goodbye = true,
            other => panic!("the stub has no answer to {other:?}"),
        }
    }

    fn go_to(&mut self, position: Position) {
        self.epoch = position.epoch;
        self.batch = position.samples / u64::from(self.script.rows);
    }

    fn place(&self) -> Positioned {
        Positioned {
            serial: self.serial,
            position: Position {
                epoch: self.epoch,
                samples: self.batch * u64::from(self.script.rows),
            },
            batches_left: self.script.batches_per_epoch - self.batch,
            batches_of_epoch: self.script.batches_per_epoch,
        }
    }

    fn attach(&mut self) {
        let script = &self.script;
        let layout = Arc::new(SlotLayout::new(&tensors(), script.rows).unwrap());
        let make = |what, bytes: u64, peers| {
            let segment = Segment::create(what, bytes).unwrap();
            let mapping = segment.map().unwrap();
            segment.seal(peers).unwrap();
            (segment, mapping)
        };
        let words = |count: usize| count as u64 * 8;
        let publish_bytes = words(publish_words(script.slots, tensors().len()));
        let return_bytes = words(return_words(script.slots));
        let data_bytes = layout.slot_bytes() * u64::from(script.slots);
        let (data, data_map) = make("data", data_bytes, Access::ReadWrite);
        let (publish, publish_map) = make("publish", publish_bytes, Access::ReadOnly);
        let (returns, return_map) = make("return", return_bytes, Access::ReadWrite);
        let attached = Attached {
            session: 1,
            stream: "train".into(),
            tensors: tensors(),
            batch_size: script.rows,
            slots: script.slots,
            hold: script.hold,
            slot_bytes: layout.slot_bytes(),
            publish_bytes,
            return_bytes,
            start: self.place(),
            batches_per_epoch: script.batches_per_epoch,
            samples_per_epoch: script.batches_per_epoch * u64::from(script.rows),
            epochs: script.epochs,
            dataset_fingerprint: [0xda; 32],
            config_fingerprint: [0xc0; 32],
            stream_version: 1,
            restart_policy: RestartPolicy::Never,
            identity: Identity::default().with("samples", 24),
            python_sources: Vec::new(),
            pools: None,
        };
        self.serving = Some(Serving {
            rows: split_rows(data_map, &layout, script.slots),
            layout,
            publish: PublishWriter::new(publish_map, script.slots, tensors().len()),
            returns: ReturnReader::new(return_map, script.slots),
            table: SlotTable::new(script.slots),
        });
        let descriptors = [data.descriptor(), publish.descriptor(), returns.descriptor()];
        self.connection.send(&DaemonFrame::Attached(Box::new(attached)), &descriptors).unwrap();
    }

    fn read_returns(&mut self) {
        let Some(serving) = &mut self.serving else {
            return;
        };
        loop {
            match serving.returns.take_return() {
                Ok(Some(word)) => {
                    if let Err(violation) = serving.table.accept_return(word) {
                        self.report.violations.push(violation.to_string());
                    }
                }
                Ok(None) => return,
                Err(overrun) => return self.report.violations.push(overrun.to_string()),
            }
        }
    }

    fn publish_what_fits(&mut self) {
        let Some(serving) = &mut self.serving else { return };
        loop {
            let published = serving.publish.published();
            if self.script.epochs.is_some_and(|epochs| self.epoch >= epochs) {
                return;
            }
            let Some((slot, generation)) = serving.table.begin_fill() else {
                serving.publish.ask_wake_at(serving.returns.consumed() + 1, false);
                return;
            };
            let rows = u64::from(self.script.rows);
            for (row, writer) in serving.rows[usize::from(slot.0)].iter_mut().enumerate() {
                let id = self.epoch * 1_000_000 + self.batch * rows + row as u64;
                writer.bytes_mut(0).copy_from_slice(&id.to_le_bytes());
                writer.bytes_mut(1).fill(u8::try_from(id % 251).unwrap());
                let value = u16::try_from(row).unwrap();
                for element in writer.bytes_mut(2).chunks_exact_mut(2).take(row % 3) {
                    element.copy_from_slice(&value.to_le_bytes());
                }
                writer.set_ragged_length(2, row as u64 % 3);
            }
            self.batch += 1;
            let last = self.batch == self.script.batches_per_epoch;
            let epoch = self.epoch;
            let mut descriptor = Descriptor {
                sequence: BatchNumber(published),
                slot,
                generation,
                payload_bytes: serving.layout.slot_bytes(),
                epoch,
                position_after: Position { epoch, samples: self.batch * rows },
                seek_serial: self.serial,
                rows,
                substitutes: self.batch,
                batches_after: 0,
                last_of_epoch: last,
                replayed: false,
                tensors: entries(&serving.layout, rows),
            };
            if last {
                self.epoch += 1;
                self.batch = 0;
            }
            if let Some(spoil) = self.script.spoil {
                spoil(&mut descriptor);
            }
            serving.table.publish(slot);
            serving.publish.publish(&descriptor);
            serving.publish.show_progress(published + 1);
            if serving.returns.client_sleeps() {
                let _ = self.connection.ring();
            }
        }
    }
}

fn entries(layout: &SlotLayout, rows: u64) -> Vec<TensorEntry> {
    let tensors = layout.tensors().iter().zip(layout.places());
    tensors
        .map(|(spec, place)| {
            let mut dims = [0; MAX_RANK];
            dims[0] = rows;
            dims[1..=spec.row_shape.len()].copy_from_slice(&spec.row_shape);
            let ragged = matches!(spec.extent, Extent::Ragged { .. });
            if ragged {
                dims[0] = rows * place.row_pitch_bytes / spec.dtype.size_bytes();
            }
            TensorEntry {
                dtype: spec.dtype,
                ragged,
                offset_bytes: place.offset_bytes,
                length_bytes: rows * place.row_pitch_bytes,
                table_offset_bytes: place.table_offset_bytes,
                rank: u8::try_from(spec.row_shape.len() + 1).unwrap(),
                dims,
            }
        })
        .collect()
}
