//! The objects in a file, by their paths.

use std::collections::HashMap;

use forebay_dataset::error::DatasetError;

use super::header::{LAYOUT, LINK, LINK_INFO, Message, SYMBOL_TABLE};
use super::{Hdf5, Numbers, Sizes};

/// The most objects of a file.
const MAX_OBJECTS: usize = 1 << 22;
/// The most levels of groups, and of a tree.
const MAX_DEPTH: usize = 64;
/// The most bytes of a name, and of the names of a group.
const MAX_NAME_BYTES: usize = 64 << 10;
const MAX_HEAP_BYTES: u64 = 64 << 20;

impl Hdf5<'_> {
    /// The datasets of the file, by their paths and the addresses of their headers, in the order of the groups' lists. Links to paths and to other files, and
    /// names that are not UTF-8, are left out; a group of several paths has the first one.
    ///
    /// # Errors
    /// A group is damaged or of a newer kind, or the file cannot be read.
    pub(in super::super) fn datasets(&mut self) -> Result<Vec<(String, u64)>, DatasetError> {
        let mut found = Vec::new();
        // Whether the object of a header is a group, which is visited once.
        let mut known = HashMap::new();
        let mut waiting = vec![(String::new(), self.root, 0)];
        while let Some((path, header, depth)) = waiting.pop() {
            if depth > MAX_DEPTH || known.len().max(found.len()) > MAX_OBJECTS {
                return Err(self.fault("it has too many objects, or groups in groups"));
            }
            match known.get(&header) {
                Some(true) => continue,
                Some(false) => {
                    found.push((path, header));
                    continue;
                }
                None => {}
            }
            let messages = self.header(header)?;
            let is_group = !messages.iter().any(|message| message.kind == LAYOUT);
            known.insert(header, is_group);
            if !is_group {
                found.push((path, header));
                continue;
            }
            // The last one is visited first.
            for (name, header) in self.links(&messages)?.into_iter().rev() {
                let path = if path.is_empty() { name } else { format!("{path}/{name}") };
                self.charge(path.len() as u64)?;
                waiting.push((path, header, depth + 1));
            }
        }
        Ok(found)
    }

    /// The objects in a group.
    fn links(&mut self, messages: &[Message]) -> Result<Vec<(String, u64)>, DatasetError> {
        let mut links = Vec::new();
        for message in messages {
            let mut numbers = Numbers { rest: &message.bytes };
            match message.kind {
                SYMBOL_TABLE => {
                    let places = numbers.address(self.sizes).zip(numbers.address(self.sizes));
                    let Some((Some(tree), Some(heap))) = places else {
                        return Err(self.damaged("the list of a group", message.address));
                    };
                    let names = self.heap(heap)?;
                    self.symbols(tree, &names, &mut links, 0)?;
                }
                LINK => {
                    let link = link(&message.bytes, self.sizes);
                    links.extend(link.ok_or_else(|| self.damaged("a link", message.address))?);
                }
                LINK_INFO => {
                    let places = dense(&message.bytes, self.sizes);
                    let places = places
                        .ok_or_else(|| self.damaged("the list of a group", message.address))?;
                    let Some((heap, tree)) = places else { continue };
                    for (address, bytes) in self.dense_links(heap, tree)? {
                        let link = link(&bytes, self.sizes);
                        links.extend(link.ok_or_else(|| self.damaged("a link", address))?);
                    }
                }
                _ => {}
            }
        }
        Ok(links)
    }

    /// The names of an old group.
    fn heap(&mut self, address: u64) -> Result<Vec<u8>, DatasetError> {
        let sizes = self.sizes;
        let what = "the names of a group";
        let head = self.get(address, 8 + 2 * sizes.length as u64 + sizes.offset as u64)?.to_vec();
        let mut numbers = Numbers { rest: &head };
        let is_heap = numbers.take(4) == Some(b"HEAP");
        let parsed = numbers.skip(4).and_then(|()| {
            let bytes = numbers.sized(sizes.length)?;
            numbers.skip(sizes.length)?;
            Some((bytes, numbers.address(sizes)??))
        });
        match parsed {
            Some((bytes, data)) if is_heap && bytes <= MAX_HEAP_BYTES => {
                Ok(self.get(data, bytes)?.to_vec())
            }
            _ => Err(self.damaged(what, address)),
        }
    }

    /// The objects below a node of an old group's tree.
    fn symbols(
        &mut self,
        address: u64,
        names: &[u8],
        links: &mut Vec<(String, u64)>,
        depth: usize,
    ) -> Result<(), DatasetError> {
        let what = "the list of a group";
        if depth > MAX_DEPTH || links.len() > MAX_OBJECTS {
            return Err(self.damaged(what, address));
        }
        let sizes = self.sizes;
        let head = self.node(what, address, 8)?;
        if head.starts_with(b"SNOD") {
            let count = u64::from(u16::from_le_bytes([head[6], head[7]]));
            let each = 2 * sizes.offset + 24;
            let entries = self.get(address.saturating_add(8), count * each as u64)?.to_vec();
            for entry in entries.chunks_exact(each) {
                let mut numbers = Numbers { rest: entry };
                let at = numbers.sized(sizes.offset).unwrap_or(u64::MAX);
                let name = name_at(names, at).ok_or_else(|| self.damaged(what, address))?;
                self.charge(name.len() as u64)?;
                let header = numbers.address(sizes).flatten();
                // A soft link has no object.
                let is_link = numbers.u32() == Some(2);
                let name = std::str::from_utf8(name).ok().filter(|name| !name.is_empty());
                if let (Some(name), Some(header), false) = (name, header, is_link) {
                    links.push((name.to_owned(), header));
                }
            }
            return Ok(());
        }
        if !head.starts_with(b"TREE\0") {
            return Err(self.damaged(what, address));
        }
        let count = usize::from(u16::from_le_bytes([head[6], head[7]]));
        let bytes = count * (sizes.length + sizes.offset);
        let rest =
            self.get(address.saturating_add(8 + 2 * sizes.offset as u64), bytes as u64)?.to_vec();
        let mut numbers = Numbers { rest: &rest };
        for _ in 0..count {
            let child = numbers.skip(sizes.length).and_then(|()| numbers.address(sizes)?);
            let child = child.ok_or_else(|| self.damaged(what, address))?;
            self.symbols(child, names, links, depth + 1)?;
        }
        Ok(())
    }
}

/// A name, which ends with a zero.
fn name_at(names: &[u8], at: u64) -> Option<&[u8]> {
    let rest = names.get(usize::try_from(at).ok()?..)?;
    let rest = &rest[..rest.len().min(MAX_NAME_BYTES)];
    Some(&rest[..rest.iter().position(|byte| *byte == 0)?])
}

/// A link to an object; the inner `None`: to a path or to another file, or of a name that is not UTF-8.
fn link(bytes: &[u8], sizes: Sizes) -> Option<Option<(String, u64)>> {
    let mut numbers = Numbers { rest: bytes };
    (numbers.u8()? == 1).then_some(())?;
    let flags = numbers.u8()?;
    let kind = if flags & 8 != 0 { numbers.u8()? } else { 0 };
    if flags & 4 != 0 {
        // The order in which it was made.
        numbers.skip(8)?;
    }
    if flags & 0x10 != 0 {
        // The encoding of the name.
        numbers.skip(1)?;
    }
    let length = usize::try_from(numbers.sized(1 << (flags & 3))?).ok()?;
    let name = numbers.take(length)?;
    if kind != 0 {
        return Some(None);
    }
    let header = numbers.address(sizes)??;
    Some(String::from_utf8(name.to_vec()).ok().map(|name| (name, header)))
}

/// The addresses of the heap and of the tree that a group's links are in; the inner `None`: they are in its header.
fn dense(bytes: &[u8], sizes: Sizes) -> Option<Option<(u64, u64)>> {
    let mut numbers = Numbers { rest: bytes };
    numbers.skip(1)?;
    let flags = numbers.u8()?;
    if flags & 1 != 0 {
        // The highest number of an order of creation.
        numbers.skip(8)?;
    }
    let heap = numbers.address(sizes)?;
    Some(heap.zip(numbers.address(sizes)?))
}
