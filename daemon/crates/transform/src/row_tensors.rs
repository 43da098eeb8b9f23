//! The tensors of a row, by number: the tensors of its batch, and tensors that only operations on batches see.
//!
//! A function on complete batches may omit a tensor that the stages write, or replace it. The original is then not part
//! of a batch: its row is stored outside the batch's slot.

use forebay_protocol::tensor::{Extent, TensorSpec};

/// The Python type of a ragged tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListKind {
    Text,
    Bytes,
    Array,
}

/// The location of a tensor of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowPlace {
    /// In the batch, as the tensor with this number there.
    Batch(usize),
    /// Outside it, at this index of [`SamplePlan::beside_tensors`](crate::SamplePlan::beside_tensors).
    Beside(usize),
}

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct RowTensors {
    all: Vec<TensorSpec>,
    /// By number, for ragged tensors.
    lists: Vec<Option<ListKind>>,
    /// The numbers of the batch's tensors, and their specifications.
    numbers: Vec<usize>,
    specs: Vec<TensorSpec>,
    beside: Vec<TensorSpec>,
    /// By number.
    places: Vec<RowPlace>,
}

impl RowTensors {
    /// The tensors that the stages write.
    pub(crate) fn new(all: Vec<TensorSpec>, lists: Vec<Option<ListKind>>) -> Self {
        let mut tensors = Self { numbers: (0..all.len()).collect(), all, lists, ..Self::default() };
        tensors.settle();
        tensors
    }

    /// The tensors of a row, by number.
    pub(crate) fn all(&self) -> &[TensorSpec] {
        &self.all
    }

    /// The tensors of the batch.
    pub(crate) fn specs(&self) -> &[TensorSpec] {
        &self.specs
    }

    /// The numbers of the batch's tensors.
    pub(crate) fn numbers(&self) -> &[usize] {
        &self.numbers
    }

    /// The tensors outside the batch.
    pub(crate) fn beside(&self) -> &[TensorSpec] {
        &self.beside
    }

    pub(crate) fn place(&self, number: usize) -> RowPlace {
        self.places[number]
    }

    /// The Python type of a ragged tensor's elements.
    pub(crate) fn list(&self, number: usize) -> Option<ListKind> {
        self.lists[number]
    }

    /// Replaces the batch's tensors, which were changed in place, and appends added ones.
    pub(crate) fn change(&mut self, specs: Vec<TensorSpec>) {
        for (place, spec) in specs.into_iter().enumerate() {
            match self.numbers.get(place) {
                Some(number) => self.all[*number] = spec,
                None => {
                    let list = matches!(spec.extent, Extent::Ragged { .. });
                    let number = self.add(spec, list.then_some(ListKind::Array));
                    self.numbers.push(number);
                }
            }
        }
        self.settle();
    }

    /// Adds a tensor that is not in the batch yet; returns its number.
    pub(crate) fn add(&mut self, spec: TensorSpec, list: Option<ListKind>) -> usize {
        self.all.push(spec);
        self.lists.push(list);
        self.all.len() - 1
    }

    /// Sets the batch's tensors, by number.
    pub(crate) fn keep(&mut self, numbers: Vec<usize>) {
        self.numbers = numbers;
        self.settle();
    }

    fn settle(&mut self) {
        self.specs = self.numbers.iter().map(|number| self.all[*number].clone()).collect();
        self.beside.clear();
        self.places.clear();
        for (number, spec) in self.all.iter().enumerate() {
            let in_batch = self.numbers.iter().position(|of_batch| *of_batch == number);
            self.places.push(match in_batch {
                Some(place) => RowPlace::Batch(place),
                None => {
                    self.beside.push(spec.clone());
                    RowPlace::Beside(self.beside.len() - 1)
                }
            });
        }
    }
}
