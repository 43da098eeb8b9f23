//! A synthetic folder in memory with generated class folders and file names, for tests, and for measurements at sizes
//! that do not fit a disk. Entries are not stored but computed by each listing.

use forebay_storage::StorageError;
use forebay_storage::listing::{Directories, DirectoryStamp, EntryKind};

/// How file names are generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameRule {
    /// `img_00001234.jpg`, counted over the whole folder.
    Counted,
    /// `n00000012_1234.JPEG`, as in ImageNet: the class and a number out of about 20 times as many.
    ImageNet,
    /// `9f86d081884c7d65.jpg`: 64 bits of a hash, which encoding can hardly shorten.
    Hashed,
}

/// A folder of `classes` class folders with `files_per_class` files each; with 0 classes, one flat folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GeneratedFolder {
    /// 0: all files are in the root.
    pub classes: u64,
    /// In each class, or in the root.
    pub files_per_class: u64,
    /// How file names are generated.
    pub rule: NameRule,
}

impl GeneratedFolder {
    /// A class folder's name.
    #[must_use]
    pub fn class_name(class: u64) -> String {
        format!("n{class:08}")
    }

    /// A file's name, by its class and its number in the class.
    #[must_use]
    pub fn file_name(&self, class: u64, file: u64) -> String {
        let number = class * self.files_per_class + file;
        let scattered = scatter(number);
        match self.rule {
            NameRule::Counted => format!("img_{number:08}.jpg"),
            NameRule::ImageNet => format!("n{class:08}_{}.JPEG", file * 20 + scattered % 20),
            NameRule::Hashed => format!("{scattered:016x}.jpg"),
        }
    }
}

/// SplitMix64's output function (Steele, Lea and Flood, 2014): a permutation of the 64-bit numbers.
fn scatter(number: u64) -> u64 {
    let mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

impl Directories for GeneratedFolder {
    fn list(
        &self,
        directory: &[u8],
        visit: &mut dyn FnMut(&[u8], EntryKind),
    ) -> Result<DirectoryStamp, StorageError> {
        if directory.is_empty() && self.classes > 0 {
            for class in 0..self.classes {
                visit(Self::class_name(class).as_bytes(), EntryKind::Directory);
            }
        } else {
            let class = std::str::from_utf8(directory)
                .ok()
                .and_then(|name| name.strip_prefix('n')?.parse().ok())
                .unwrap_or(0);
            for file in 0..self.files_per_class {
                visit(self.file_name(class, file).as_bytes(), EntryKind::File);
            }
        }
        self.stamp(directory)
    }

    fn stamp(&self, _directory: &[u8]) -> Result<DirectoryStamp, StorageError> {
        Ok(DirectoryStamp::default())
    }
}
