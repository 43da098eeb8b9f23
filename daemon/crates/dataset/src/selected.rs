//! A dataset of which only some samples are used. Their ids are those of the whole dataset: [`Dataset::kept`] says which
//! they are, and the order draws from these.

use std::sync::Arc;

use forebay_protocol::ids::SampleId;
use forebay_select::Subset;
use forebay_storage::location::{FileId, FileTable};
use forebay_storage::version::ObjectStamp;

use crate::layer::Layer;
use crate::{ClassSummary, Dataset, Description, DirectRead};

/// See the module's head.
#[derive(Debug)]
pub struct Selected {
    inner: Arc<dyn Dataset>,
    kept: Arc<Subset>,
    /// What selects the samples, for users.
    words: String,
}

impl Selected {
    /// The samples of a dataset that are in a subset. `words`: what selects them.
    #[must_use]
    pub const fn new(inner: Arc<dyn Dataset>, kept: Arc<Subset>, words: String) -> Self {
        Self { inner, kept, words }
    }
}

impl Selected {
    /// The classes with their samples among those that are used; without numbers if the index lacks a label.
    fn classes_of_kept(&self) -> Option<ClassSummary> {
        let names = self.inner.classes();
        let mut counts = vec![0; names.len()];
        for id in self.kept.ids() {
            let label = self.inner.label(SampleId(id)).and_then(Result::ok);
            let place = label.and_then(|label| counts.get_mut(usize::try_from(label).ok()?));
            match place {
                Some(count) => *count += 1,
                None => return ClassSummary::of_names(names),
            }
        }
        ClassSummary::of_counts(names, &counts)
    }
}

impl FileTable for Selected {
    fn append_path(&self, file: FileId, path: &mut Vec<u8>) {
        self.inner.append_path(file, path);
    }

    fn stamp(&self, file: FileId) -> Option<ObjectStamp> {
        self.inner.stamp(file)
    }
}

impl Layer for Selected {
    type Inner = dyn Dataset;

    fn inner(&self) -> &Self::Inner {
        self.inner.as_ref()
    }

    fn kept(&self) -> Option<&Arc<Subset>> {
        Some(&self.kept)
    }

    fn direct_read(&self) -> Option<&DirectRead> {
        self.inner.direct_read()
    }

    fn fingerprint(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key("forebay selected samples of a dataset");
        hasher.update(&self.inner.fingerprint());
        hasher.update(&self.kept.digest());
        *hasher.finalize().as_bytes()
    }

    fn description(&self) -> Description {
        let mut description = self.inner.description();
        if description.classes.as_ref().is_some_and(|classes| classes.sizes.is_some()) {
            description.classes = self.classes_of_kept();
        }
        description.notes.push(("selected", self.words.clone()));
        description
    }
}
