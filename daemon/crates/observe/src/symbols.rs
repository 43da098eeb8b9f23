//! Resolves addresses of this process to functions, with the symbols of its executable.
//!
//! Only the sections with symbols are read. An address in a shared library resolves to the library's file name.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;

use object::read::ReadCache;
use object::{Object, ObjectSegment, ObjectSymbol, SymbolIndex, SymbolKind};

/// An executable mapping of a file.
struct Mapped {
    memory: Range<u64>,
    file_offset: u64,
    path: String,
}

/// The names of the functions, by address; and whether the executable has symbols.
pub fn names(addresses: impl Iterator<Item = u64>) -> (BTreeMap<u64, String>, bool) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mapped: Vec<Mapped> = maps.lines().filter_map(parse_line).collect();
    let program = std::fs::read_link("/proc/self/exe").unwrap_or_default();
    let program = program.to_string_lossy();
    let mut names = BTreeMap::new();
    // For addresses in the executable: the offset in its file, and the address.
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

/// Parses `start-end rights offset device inode path` of an executable mapping.
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

/// Resolves offsets in the executable's file. False: it has no symbols.
fn read_symbols(own: &[(u64, u64)], names: &mut BTreeMap<u64, String>) -> Option<bool> {
    let cache = ReadCache::new(File::open("/proc/self/exe").ok()?);
    let program = object::File::parse(&cache).ok()?;
    // By the address in the file's address space.
    let mut wanted: Vec<(u64, u64)> = Vec::new();
    for segment in program.segments() {
        let (offset, length) = segment.file_range();
        let within = own.iter().filter(|(at, _)| (offset..offset + length).contains(at));
        wanted.extend(within.map(|(at, address)| (at - offset + segment.address(), *address)));
    }
    let functions = program.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text);
    let mut functions: Vec<Function> = functions
        .map(|symbol| Function {
            start: symbol.address(),
            length: symbol.size(),
            symbol: symbol.index(),
        })
        .collect();
    functions.sort_unstable_by_key(|function| (function.start, function.length));
    for (at, address) in wanted {
        let symbol = containing(&functions, at).map(|found| program.symbol_by_index(found.symbol));
        if let Some(Ok(symbol)) = symbol
            && let Ok(name) = symbol.name()
        {
            names.entry(address).or_insert_with(|| readable(name));
        }
    }
    Some(!functions.is_empty())
}

/// The range of a function in the file's address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Function {
    start: u64,
    /// 0 if the symbol has no size, as for some functions in assembly: the function extends to the next one.
    length: u64,
    symbol: SymbolIndex,
}

/// The function that contains an address; `functions` are sorted by address.
fn containing(functions: &[Function], at: u64) -> Option<&Function> {
    let after = functions.partition_point(|function| function.start <= at);
    let last = functions.get(after.checked_sub(1)?)?;
    (last.length == 0 || at - last.start < last.length).then_some(last)
}

/// A symbol's name without its hash, shortened for display.
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
    fn function_of_this_program_is_named() {
        let own = readable as fn(&str) -> String as usize as u64;
        let (found, has_symbols) = names([own + 1, 1].into_iter());
        assert!(has_symbols);
        assert!(found[&(own + 1)].ends_with("symbols::readable"), "{found:?}");
        assert_eq!(found[&1], "no file");
    }

    #[test]
    fn function_without_a_size_extends_to_the_next_one() {
        let function = |start, length| Function { start, length, symbol: SymbolIndex(0) };
        let functions = [function(0x100, 0x20), function(0x140, 0), function(0x200, 0x10)];
        let found = |at| containing(&functions, at).map(|function| function.start);
        assert_eq!([found(0x90), found(0x100), found(0x11f)], [None, Some(0x100), Some(0x100)]);
        assert_eq!([found(0x120), found(0x13f)], [None; 2], "between two functions");
        assert_eq!([found(0x140), found(0x1ff)], [Some(0x140); 2]);
        assert_eq!([found(0x20f), found(0x210)], [Some(0x200), None]);
    }

    #[test]
    fn lines_of_proc_maps_are_parsed() {
        let line = "55d0-55f0 r-xp 00001000 fd:00 1234    /opt/with a space/forebay";
        let mapped = parse_line(line).unwrap();
        assert_eq!((mapped.memory, mapped.file_offset), (0x55d0..0x55f0, 0x1000));
        assert_eq!(mapped.path, "/opt/with a space/forebay");
        assert!(parse_line("55d0-55f0 rw-p 00001000 fd:00 1234 /opt/forebay").is_none());
        assert!(parse_line("nonsense").is_none());
    }
}
