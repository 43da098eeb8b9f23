//! Plays a trainer on a GPU: takes batches to a device, reads them there on streams of its own, and prints what they held.
//! Its arguments are done one after the other; one JSON line for each thing that happens.
//!
//! - `pin=POLICY ahead=N device=N` come before `use` and say how batches come to the device
//! - `keep=N` holds up to so many batches at random, `streams=N` reads them on so many streams, by turns
//! - `use=WORD` attaches and uploads; `host=WORD` attaches and reads in this process's memory
//! - `epoch` takes a whole epoch, `take=N` so many batches of one
//! - `state` prints the state (`state=N`: N batches before), `begin` begins the next epoch, `uploaded=N` waits for so many,
//!   `pinned` until the ring is
//! - `leave=N` takes so many batches, drops them and the loader, and only then waits for the device to have read them
//! - `kill-daemon` kills the private daemon; `stats` prints the upload's
//!   figures; `context=N` makes another device's context this thread's own and checks that it stays so
//!
//! It ends with status 3 and the error when a loader has one.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;

use forebay_client::cuda::cudarc::driver::{CudaContext, CudaStream, CudaView, DevicePtr, result};
use forebay_client::cuda::{Device, DeviceLoader, DeviceOptions, PinPolicy};
use forebay_client::{DeviceBatch, Error, Loader, Target};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

fn main() {
    if let Err(error) = play() {
        say(&json!({ "error": error.to_string() }));
        std::process::exit(3);
    }
}

fn say(line: &Value) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).expect("somebody reads");
}

fn number(text: &str) -> usize {
    text.parse().expect("a number")
}

/// What a tensor held, as it is on its way from the device.
struct Tensor {
    bytes: Vec<u8>,
    element_bytes: usize,
    table: Option<(Vec<u64>, Vec<u64>)>,
}

impl Tensor {
    fn add_to(&self, hasher: &mut blake3::Hasher) {
        let Some((offsets, lengths)) = &self.table else {
            hasher.update(&self.bytes);
            return;
        };
        for (offset, length) in offsets.iter().zip(lengths) {
            let (offset, length) = (number_of(*offset), number_of(*length));
            let row = offset * self.element_bytes..(offset + length) * self.element_bytes;
            hasher.update(&length.to_le_bytes());
            hasher.update(&self.bytes[row]);
        }
    }
}

fn number_of(value: u64) -> usize {
    usize::try_from(value).expect("an offset")
}

fn digest(tensors: &[Tensor]) -> String {
    let mut hasher = blake3::Hasher::new();
    for tensor in tensors {
        tensor.add_to(&mut hasher);
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

/// The trainer's side of a device.
struct OnDevice {
    loader: DeviceLoader,
    streams: Vec<Arc<CudaStream>>,
    keep: usize,
    draw: u64,
    /// Another device's context, which stays this thread's own while batches are taken.
    other: Option<Arc<CudaContext>>,
}

/// Queues a copy to this process's memory, behind what the stream waits for.
fn fetch<T: Copy + Default>(view: &CudaView<'_, T>, stream: &Arc<CudaStream>) -> Vec<T> {
    let mut host = vec![T::default(); view.len()];
    let (address, _guard) = view.device_ptr(stream);
    // SAFETY: the vector's memory stays where it is until the stream was synchronised, when it is read.
    unsafe { result::memcpy_dtoh_async(&mut host, address, stream.cu_stream()) }.expect("queued");
    host
}

fn read(batch: &DeviceBatch, stream: &Arc<CudaStream>) -> Vec<Tensor> {
    let of = |spec: &forebay_client::TensorSpec| Tensor {
        bytes: fetch(&batch.bytes(&spec.name).expect("a tensor"), stream),
        element_bytes: number_of(spec.dtype.size_bytes()),
        table: batch
            .table(&spec.name)
            .map(|(offsets, lengths)| (fetch(&offsets, stream), fetch(&lengths, stream))),
    };
    batch.specs().iter().map(of).collect()
}

impl OnDevice {
    fn draw(&mut self, below: usize) -> usize {
        self.draw = self
            .draw
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        number_of(self.draw >> 33) % below.max(1)
    }

    /// Takes batches, lets go of them and of the loader, and reads them only then.
    fn leave(mut self, count: usize) -> Result<(), Error> {
        let mut seen = Vec::new();
        let current = Arc::clone(&self.streams[0]);
        while seen.len() < count {
            let Some(batch) = self.loader.next_batch(&current)? else { break };
            seen.push((batch.number(), batch.epoch(), batch.rows(), read(&batch, &current)));
        }
        drop(self.loader);
        current.synchronize().expect("the device works");
        for (number, epoch, rows, tensors) in &seen {
            say(
                &json!({ "number": number, "epoch": epoch, "rows": rows, "digest": digest(tensors) }),
            );
        }
        Ok(())
    }

    fn take(&mut self, most: usize) -> Result<(), Error> {
        let mut seen: Vec<(u64, u64, u64, Vec<Tensor>)> = Vec::new();
        let mut held: VecDeque<DeviceBatch> = VecDeque::new();
        while seen.len() < most {
            let current = Arc::clone(&self.streams[0]);
            if let Some(other) = &self.other {
                other.bind_to_thread().expect("another device");
            }
            let taken = self.loader.next_batch(&current).inspect_err(|_| {
                // Copies to it are on their way still.
                std::mem::forget(std::mem::take(&mut seen));
            })?;
            if let Some(other) = &self.other {
                let current = result::ctx::get_current().expect("a driver");
                assert_eq!(current, Some(other.cu_ctx()), "the thread's context was changed");
            }
            let Some(batch) = taken else { break };
            let place = self.draw(self.streams.len());
            let stream = Arc::clone(&self.streams[place]);
            if place > 0 {
                batch.used_on(&stream)?;
            }
            seen.push((batch.number(), batch.epoch(), batch.rows(), read(&batch, &stream)));
            held.push_back(batch);
            while held.len() > self.keep || (!held.is_empty() && self.draw(3) == 0) {
                let place = self.draw(held.len());
                held.remove(place);
            }
        }
        for stream in &self.streams {
            stream.synchronize().expect("the device works");
        }
        drop(held);
        for (number, epoch, rows, tensors) in &seen {
            say(
                &json!({ "number": number, "epoch": epoch, "rows": rows, "digest": digest(tensors) }),
            );
        }
        say(&json!({ "end": seen.len() }));
        Ok(())
    }
}

fn take_on_host(loader: &mut Loader, most: usize) -> Result<(), Error> {
    let mut seen = 0;
    while seen < most {
        let Some(batch) = loader.next_batch()? else { break };
        let of = |tensor: forebay_client::Tensor<'_>| Tensor {
            bytes: tensor.bytes().to_vec(),
            element_bytes: number_of(tensor.dtype().size_bytes()),
            table: tensor.ragged().map(|ragged| {
                let rows = (0..ragged.len()).map(|row| ragged.row_bytes(row).expect("a row"));
                let start = tensor.bytes().as_ptr() as usize;
                let size = number_of(tensor.dtype().size_bytes());
                rows.map(|row| {
                    (((row.as_ptr() as usize - start) / size) as u64, (row.len() / size) as u64)
                })
                .unzip()
            }),
        };
        let tensors: Vec<Tensor> = batch.tensors().map(of).collect();
        let (number, epoch, rows) = (batch.number(), batch.epoch(), batch.rows());
        say(&json!({ "number": number, "epoch": epoch, "rows": rows, "digest": digest(&tensors) }));
        seen += 1;
    }
    say(&json!({ "end": seen }));
    Ok(())
}

fn play() -> Result<(), Error> {
    let mut options = DeviceOptions::default();
    let (mut ordinal, mut keep, mut streams) = (0, 0, 1);
    let mut device: Option<OnDevice> = None;
    let mut host: Option<Loader> = None;
    let mut other: Option<Arc<CudaContext>> = None;
    for argument in std::env::args().skip(1) {
        let (verb, value) = argument.split_once('=').unwrap_or((&argument, ""));
        match verb {
            "pin" => options.pin = PinPolicy::from_name(value)?,
            "ahead" => options.ahead = number(value),
            "device" => ordinal = number(value),
            "keep" => keep = number(value),
            "streams" => streams = number(value),
            "context" => other = Some(CudaContext::new(number(value)).expect("another device")),
            "use" => {
                let opened = Device::open(ordinal)?;
                let loader = Loader::builder(Target::parse(value)).attach_to(&opened, options)?;
                let context = CudaContext::new(ordinal).expect("opened before");
                let streams =
                    (0..streams).map(|_| context.new_stream().expect("a stream")).collect();
                let other = other.clone();
                device = Some(OnDevice { loader, streams, keep, draw: 17, other });
            }
            "host" => host = Some(Loader::attach(Target::parse(value))?),
            "epoch" | "take" => {
                let most = if verb == "epoch" { usize::MAX } else { number(value) };
                match (&mut device, &mut host) {
                    (Some(device), _) => device.take(most)?,
                    (None, Some(host)) => take_on_host(host, most)?,
                    (None, None) => panic!("`use` comes first"),
                }
            }
            "leave" => device.take().expect("`use` comes first").leave(number(value))?,
            _ => on_device(verb, value, device.as_mut().expect("`use` comes first"))?,
        }
    }
    Ok(())
}

fn on_device(verb: &str, value: &str, device: &mut OnDevice) -> Result<(), Error> {
    match verb {
        "state" => {
            let held_back = if value.is_empty() { 0 } else { number(value) };
            let state = device.loader.state(held_back);
            say(&match state {
                Ok(state) => json!({ "state": state.to_json() }),
                Err(error) => json!({ "refused": error.to_string() }),
            });
        }
        "uploaded" => {
            forebay_tests::wait_until("all of it was uploaded", || {
                device.loader.upload_statistics().batches >= number(value) as u64
            });
            // The epoch's end is seen next.
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        "pinned" => forebay_tests::wait_until("the ring is pinned", || {
            device.loader.upload_statistics().path == "registered"
        }),
        "begin" => device.loader.begin_epoch()?,
        "kill-daemon" => {
            let (daemon, _) = device.loader.daemon()?;
            assert!(forebay_tests::signal(daemon.expect("a private daemon"), Signal::SIGKILL));
        }
        "stats" => {
            let figures = device.loader.upload_statistics();
            let given_up = device.loader.given_up();
            say(
                &json!({ "path": figures.path, "reason": figures.reason, "batches": figures.batches,
                         "bytes": figures.bytes, "given_up": given_up,
                         "staging_seconds": figures.staging_time.as_secs_f64() }),
            );
        }
        _ => panic!("no verb {verb}"),
    }
    Ok(())
}
