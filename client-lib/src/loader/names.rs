//! Names of the dataset: its classes, and the files and labels of samples. The daemon is asked for them on demand.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use forebay_protocol::frames::{ClientFrame, DaemonFrame, NamesOf, NamesRequest};

use super::Loader;
use crate::error::Error;
use crate::job::sample_count;

/// The maximum number of samples in one request: eight bytes each.
const MAX_SAMPLES: usize = 4096;

impl Loader {
    /// The names of the classes, in label order; empty if the dataset has no classes.
    ///
    /// # Errors
    /// As [`stats`](Self::stats).
    pub fn classes(&mut self) -> Result<Vec<String>, Error> {
        let mut classes: Vec<String> = Vec::new();
        loop {
            let from = classes.len() as u64;
            let (total, names) =
                self.request(|loader| loader.request_names(NamesOf::Classes { from }))?;
            for name in names {
                classes.push(String::from_utf8(name).map_err(|error| {
                    Error::Protocol(format!("the daemon sent a class that is not UTF-8: {error}"))
                })?);
            }
            if classes.len() as u64 >= total {
                return Ok(classes);
            }
        }
    }

    /// The files that contain samples, by the samples' ids: values of the field `index`.
    ///
    /// # Errors
    /// [`Error::Config`] for an id that the dataset lacks; otherwise as [`stats`](Self::stats).
    pub fn paths(&mut self, samples: &[u64]) -> Result<Vec<PathBuf>, Error> {
        let count = sample_count(&self.status.terms);
        if let Some(absent) = samples.iter().find(|sample| **sample >= count) {
            return Err(Error::Config(format!(
                "sample {absent} is not in the dataset, which has samples 0 to {}; give values of the field `index`",
                count.saturating_sub(1)
            )));
        }
        let mut paths = Vec::with_capacity(samples.len());
        while paths.len() < samples.len() {
            let rest = &samples[paths.len()..];
            let asked = &rest[..rest.len().min(MAX_SAMPLES)];
            let (_, names) = self.request(|loader| {
                loader.request_names(NamesOf::Files { samples: asked.to_vec() })
            })?;
            let names = names.into_iter().take(asked.len());
            paths.extend(names.map(|name| PathBuf::from(OsString::from_vec(name))));
        }
        Ok(paths)
    }

    /// As [`paths`](Self::paths), for one sample.
    ///
    /// # Errors
    /// As [`paths`](Self::paths).
    pub fn path(&mut self, sample: u64) -> Result<PathBuf, Error> {
        Ok(self.paths(&[sample])?.pop().unwrap_or_default())
    }

    /// The label of every sample by its id: the value of the first field of integers.
    ///
    /// # Errors
    /// [`Error::Config`] where the index of the dataset has no labels; else as [`stats`](Self::stats).
    pub fn labels(&mut self) -> Result<Vec<i64>, Error> {
        let mut labels: Vec<i64> = Vec::new();
        while (labels.len() as u64) < sample_count(&self.status.terms) {
            let from = labels.len() as u64;
            let (total, packed) =
                self.request(|loader| loader.request_names(NamesOf::Labels { from }))?;
            if let (0, Some(reason)) = (total, packed.first()) {
                return Err(Error::Config(String::from_utf8_lossy(reason).into_owned()));
            }
            let more = packed.first().map_or(&[][..], |packed| packed.as_chunks::<8>().0);
            if more.is_empty() {
                return Err(Error::Protocol("the daemon sent no labels of some".into()));
            }
            labels.extend(more.iter().map(|label| i64::from_le_bytes(*label)));
        }
        Ok(labels)
    }

    fn request_names(&mut self, of: NamesOf) -> Result<(u64, Vec<Vec<u8>>), Error> {
        self.names_requested += 1;
        let number = self.names_requested;
        self.link.send(&ClientFrame::Names(NamesRequest { request: number, of }), &[])?;
        loop {
            match self.link.next_frame("names of the dataset")? {
                (DaemonFrame::Names { request, total, names }, _) if request == number => {
                    if names.is_empty() && total > 0 {
                        return Err(Error::Protocol("the daemon sent no names of some".into()));
                    }
                    return Ok((total, names));
                }
                (other, _) => self.handle_frame(&other)?,
            }
        }
    }
}
