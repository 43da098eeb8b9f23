//! The tensors of a row, by number: those of its batch, and those that only operations on batches see.
//!
//! A function on complete batches may leave a tensor out that the stages write, or return another in its place. The first
//! is then no part of a batch: its row lies beside the batch's slot.

use forebay_protocol::tensor::{Extent, TensorSpec};

/// What the elements of a ragged tensor are for Python.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListKind {
    Text,
    Bytes,
    Array,
}

/// Where a tensor of a row lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowPlace {
    /// In the batch, as the tensor of this number there.
    Batch(usize),
    /// Beside it, in this place of [`SamplePlan::beside_tensors`](crate::SamplePlan::beside_tensors).
    Beside(usize),
}

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct RowTensors {
    all: Vec<TensorSpec>,
    /// By number: of ragged ones.
    lists: Vec<Option<ListKind>>,
    /// The numbers of those of the batch, and what they are.
    numbers: Vec<usize>,
    specs: Vec<TensorSpec>,
    beside: Vec<TensorSpec>,
    /// By number.
    places: Vec<RowPlace>,
}

impl RowTensors {
    /// Those that the stages write.
    pub(crate) fn new(all: Vec<TensorSpec>, lists: Vec<Option<ListKind>>) -> Self {
        let mut tensors = Self { numbers: (0..all.len()).collect(), all, lists, ..Self::default() };
        tensors.settle();
        tensors
    }

    /// Of a row, by number.
    pub(crate) fn all(&self) -> &[TensorSpec] {
        &self.all
    }

    /// Of the batch.
    pub(crate) fn specs(&self) -> &[TensorSpec] {
        &self.specs
    }

    /// The numbers of those of the batch.
    pub(crate) fn numbers(&self) -> &[usize] {
        &self.numbers
    }

    /// Those that lie beside the batch.
    pub(crate) fn beside(&self) -> &[TensorSpec] {
        &self.beside
    }

    pub(crate) fn place(&self, number: usize) -> RowPlace {
        self.places[number]
    }

    /// What a ragged tensor's elements are.
    pub(crate) fn list(&self, number: usize) -> Option<ListKind> {
        self.lists[number]
    }

    /// Those of the batch were changed in place, and others added behind them.
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

    /// A tensor that is in no batch yet; its number.
    pub(crate) fn add(&mut self, spec: TensorSpec, list: Option<ListKind>) -> usize {
        self.all.push(spec);
        self.lists.push(list);
        self.all.len() - 1
    }

    /// The batch has these from now on, by number.
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
