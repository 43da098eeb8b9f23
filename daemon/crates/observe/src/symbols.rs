//! Resolves addresses of this process to functions, by the symbols of its own program.
//!
//! Only the sections with symbols are read. An address in a shared library resolves to the library's file name.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;

use object::read::ReadCache;
use object::{Object, ObjectSegment, ObjectSymbol, SymbolKind};

/// Where the program's own files lie in memory.
struct Mapped {
    memory: Range<u64>,
    file_offset: u64,
    path: String,
}

/// The names of the functions, by address; and whether the program has symbols at all.
pub fn names(addresses: impl Iterator<Item = u64>) -> (BTreeMap<u64, String>, bool) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mapped: Vec<Mapped> = maps.lines().filter_map(parse_line).collect();
    let program = std::fs::read_link("/proc/self/exe").unwrap_or_default();
    let program = program.to_string_lossy();
    let mut names = BTreeMap::new();
    // In the program: the offset in its file, and where that is in memory.
    let mut own: Vec<(u64, u64)> = Vec::new();
    for address in addresses {
        match mapped.iter().find(|mapped| mapped.memory.contains(&address)) {
            None => drop(names.insert(address, "no file".to_owned())),
            Some(mapped) if mapped.path == program => {
                own.push((address - mapped.memory.start + mapped.file_offset, address));
            }
            Some(mapped) => {
                let file = mapped.path.rsplit('/').next().unwrap_or("");
                names.insert(address, if file.is_empty() { "no file" } else { file }.to_owned());
            }
        }
    }
    own.sort_unstable();
    own.dedup();
    let has_symbols = read_symbols(&own, &mut names).is_some_and(|found| found);
    for (_, address) in own {
        names.entry(address).or_insert_with(|| "forebay".to_owned());
    }
    (names, has_symbols)
}

/// `start-end rights offset device inode path`, of what can be executed.
fn parse_line(line: &str) -> Option<Mapped> {
    let mut parts = line.split_whitespace();
    let (start, end) = parts.next()?.split_once('-')?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let memory = hex(start)?..hex(end)?;
    parts.next().filter(|rights| rights.contains('x'))?;
    let file_offset = hex(parts.next()?)?;
    let path = parts.skip(2).collect::<Vec<_>>().join(" ");
    Some(Mapped { memory, file_offset, path })
}

/// Names what lies at the offsets in the program's file. False: it has no symbols.
fn read_symbols(own: &[(u64, u64)], names: &mut BTreeMap<u64, String>) -> Option<bool> {
    let cache = ReadCache::new(File::open("/proc/self/exe").ok()?);
    let program = object::File::parse(&cache).ok()?;
    // By the address that the file gives it.
    let mut wanted: Vec<(u64, u64)> = Vec::new();
    for segment in program.segments() {
        let (offset, length) = segment.file_range();
        let within = own.iter().filter(|(at, _)| (offset..offset + length).contains(at));
        wanted.extend(within.map(|(at, address)| (at - offset + segment.address(), *address)));
    }
    wanted.sort_unstable();
    let mut has_symbols = false;
    for symbol in program.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text) {
        has_symbols = true;
        let end = symbol.address().saturating_add(symbol.size());
        let first = wanted.partition_point(|(at, _)| *at < symbol.address());
        for (_, address) in wanted[first..].iter().take_while(|(at, _)| *at < end) {
            if let Ok(name) = symbol.name() {
                names.entry(*address).or_insert_with(|| readable(name));
            }
        }
    }
    Some(has_symbols)
}

/// A symbol's name without its hash, and not longer than a person reads.
fn readable(name: &str) -> String {
    let name = format!("{:#}", rustc_demangle::demangle(name));
    const MOST_CHARACTERS: usize = 160;
    match name.char_indices().nth(MOST_CHARACTERS) {
        Some((cut, _)) => format!("{}…", &name[..cut]),
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_of_this_program_has_its_name() {
        let own = readable as fn(&str) -> String as usize as u64;
        let (found, has_symbols) = names([own + 1, 1].into_iter());
        assert!(has_symbols);
        assert!(found[&(own + 1)].ends_with("symbols::readable"), "{found:?}");
        assert_eq!(found[&1], "no file");
    }

    #[test]
    fn lines_of_the_kernels_list_are_read() {
        let line = "55d0-55f0 r-xp 00001000 fd:00 1234    /opt/with a space/forebay";
        let mapped = parse_line(line).unwrap();
        assert_eq!((mapped.memory, mapped.file_offset), (0x55d0..0x55f0, 0x1000));
        assert_eq!(mapped.path, "/opt/with a space/forebay");
        assert!(parse_line("55d0-55f0 rw-p 00001000 fd:00 1234 /opt/forebay").is_none());
        assert!(parse_line("nonsense").is_none());
    }
}
