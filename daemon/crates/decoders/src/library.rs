//! Finds and opens libavcodec, and knows which decoders it has.
//!
//! Only libavcodec is opened; libavutil comes with it, and its functions are found through the same handle. A library is
//! never closed, so its functions are valid as long as the process.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use forebay_video::codec::Codec;
use libloading::os::unix::{Library as Opened, RTLD_LOCAL, RTLD_NOW};

use crate::layout::{Layout, frame};

/// The major versions of libavcodec whose layouts are known: FFmpeg 4 to 9.
pub const MAJORS: RangeInclusive<u32> = 58..=63;
/// The folder of another libavcodec than the system's. For tests of several versions.
pub const FOLDER_VARIABLE: &str = "FOREBAY_LIBAVCODEC";

/// `AV_NOPTS_VALUE`.
pub(crate) const NO_PTS: i64 = i64::MIN;
/// `AV_LOG_QUIET`.
const QUIET: c_int = -8;
/// `av_force_cpu_flags`: what the processor has.
const DETECTED: c_int = -1;
/// The default of primaries, transfer and matrix: not specified.
const UNSPECIFIED: c_int = 2;

/// Why no libavcodec can be used. Says what to install.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// No file of a known name was found.
    #[error("no libavcodec of a version from {} to {} (FFmpeg 4 to 9) is installed; {}", MAJORS.start(), MAJORS.end(), install())]
    NotFound,
    /// A file was found that is not usable.
    #[error("`{file}` cannot be used: {reason}; {}", install())]
    Unusable {
        /// The file.
        file: String,
        /// Why.
        reason: String,
    },
    /// The library has no decoder for a codec.
    #[error("libavcodec {version} has no software decoder for {codec}; {}", install())]
    NoDecoder {
        /// The codec.
        codec: &'static str,
        /// The library's version.
        version: String,
    },
}

/// What to install: the package has the major version in its name.
fn install() -> String {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    format!("`apt-get install {}`", package_of(&release))
}

/// The package of libavcodec in a release of Debian or Ubuntu, by `/etc/os-release`; another system's is `ffmpeg`.
fn package_of(release: &str) -> &'static str {
    let name = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    match name.map(|name| name.trim_matches('"')) {
        Some("bullseye" | "focal" | "jammy") => "libavcodec58",
        Some("bookworm") => "libavcodec59",
        Some("noble") => "libavcodec60",
        Some("trixie" | "plucky" | "questing") => "libavcodec61",
        _ => "ffmpeg",
    }
}

/// Declares the functions that are used, as in the headers.
macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of the library that are used.
        #[derive(Debug)]
        pub(crate) struct Functions {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Functions {
            fn load(library: &Opened) -> Result<Self, String> {
                $(
                    // SAFETY: the type is that of the library's headers, for all its major versions that are opened.
                    // The pointer is copied out of the symbol; the library is never closed.
                    let $name = unsafe {
                        *library
                            .get::<unsafe extern "C" fn($($argument),*) $(-> $result)?>(stringify!($name).as_bytes())
                            .map_err(|error| whole_reason(&error))?
                    };
                )*
                Ok(Self { $($name,)* })
            }
        }
    };
}

/// A structure of the library, only passed to its functions.
pub(crate) type Opaque = *mut c_void;

functions! {
    avcodec_version: fn() -> c_uint;
    avutil_version: fn() -> c_uint;
    av_get_cpu_flags: fn() -> c_int;
    av_force_cpu_flags: fn(c_int);
    av_log_set_level: fn(c_int);
    avcodec_find_decoder_by_name: fn(*const c_char) -> Opaque;
    avcodec_alloc_context3: fn(Opaque) -> Opaque;
    avcodec_free_context: fn(*mut Opaque);
    avcodec_open2: fn(Opaque, Opaque, Opaque) -> c_int;
    avcodec_parameters_alloc: fn() -> Opaque;
    avcodec_parameters_free: fn(*mut Opaque);
    avcodec_parameters_from_context: fn(Opaque, Opaque) -> c_int;
    avcodec_parameters_to_context: fn(Opaque, Opaque) -> c_int;
    avcodec_send_packet: fn(Opaque, Opaque) -> c_int;
    avcodec_receive_frame: fn(Opaque, Opaque) -> c_int;
    avcodec_flush_buffers: fn(Opaque);
    av_packet_alloc: fn() -> Opaque;
    av_packet_free: fn(*mut Opaque);
    av_new_packet: fn(Opaque, c_int) -> c_int;
    av_packet_unref: fn(Opaque);
    av_frame_alloc: fn() -> Opaque;
    av_frame_free: fn(*mut Opaque);
    av_mallocz: fn(usize) -> Opaque;
    av_opt_set: fn(Opaque, *const c_char, *const c_char, c_int) -> c_int;
    av_opt_set_int: fn(Opaque, *const c_char, i64, c_int) -> c_int;
    av_opt_get_int: fn(Opaque, *const c_char, c_int, *mut i64) -> c_int;
    av_get_pix_fmt_name: fn(c_int) -> *const c_char;
    av_strerror: fn(c_int, *mut c_char, usize) -> c_int;
}

/// An opened libavcodec.
#[derive(Debug)]
pub struct Library {
    pub(crate) functions: Functions,
    pub(crate) layout: Layout,
    version: String,
}

/// The names of decoders for a codec, the preferred one first. All are of software and deliver the same pictures, as
/// the codec's standard demands.
const fn decoder_names(codec: Codec) -> &'static [&'static CStr] {
    match codec {
        Codec::H264 => &[c"h264"],
        Codec::Hevc => &[c"hevc"],
        Codec::Vp9 => &[c"vp9", c"libvpx-vp9"],
        Codec::Vp8 => &[c"vp8", c"libvpx"],
        // The decoder named `av1` needs hardware.
        Codec::Av1 => &[c"libdav1d", c"libaom-av1"],
        Codec::Mpeg4 => &[c"mpeg4"],
        Codec::Mjpeg => &[c"mjpeg"],
        Codec::Aac => &[c"aac"],
        _ => &[],
    }
}

impl Library {
    /// Opens the newest known version, or the one in the folder of [`FOLDER_VARIABLE`].
    ///
    /// # Errors
    /// There is none, or it is not usable.
    pub fn open() -> Result<Self, Missing> {
        if let Some(folder) = std::env::var_os(FOLDER_VARIABLE) {
            let file = in_folder(Path::new(&folder)).ok_or(Missing::NotFound)?;
            return Self::open_file(&file);
        }
        let mut unusable = Missing::NotFound;
        for major in MAJORS.rev() {
            match Self::open_file(Path::new(&format!("libavcodec.so.{major}"))) {
                Ok(library) => return Ok(library),
                Err(Missing::NotFound) => {}
                Err(reason) => unusable = reason,
            }
        }
        Err(unusable)
    }

    fn open_file(file: &Path) -> Result<Self, Missing> {
        // SAFETY: the initialisers of FFmpeg's libraries only register constants; the file has their name.
        let opened = unsafe { Opened::open(Some(file), RTLD_NOW | RTLD_LOCAL) };
        let unusable =
            |reason: String| Missing::Unusable { file: file.display().to_string(), reason };
        let opened = match opened {
            Ok(opened) => opened,
            Err(error) if is_absent(&error, file) => return Err(Missing::NotFound),
            Err(error) => return Err(unusable(whole_reason(&error))),
        };
        let functions = Functions::load(&opened).map_err(unusable)?;
        // Functions stay valid.
        std::mem::forget(opened);
        // SAFETY: without arguments and effects.
        let (codec, util) =
            unsafe { ((functions.avcodec_version)(), (functions.avutil_version)()) };
        let layout = Layout::of(codec >> 16).filter(|_| util >> 16 == (codec >> 16) - 2);
        let version = format!("{}.{}.{}", codec >> 16, codec >> 8 & 0xff, codec & 0xff);
        let Some(layout) = layout else {
            return Err(unusable(format!("its version {version} is not known")));
        };
        check_layout(&functions, layout)
            .map_err(|reason| unusable(format!("version {version}: {reason}")))?;
        // SAFETY: sets a number.
        unsafe { (functions.av_log_set_level)(QUIET) };
        Ok(Self { functions, layout, version })
    }

    /// The version of libavcodec: `61.3.100`.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The name of the library's decoder for a codec; `None`: it has none.
    #[must_use]
    pub fn decoder_name(&self, codec: Codec) -> Option<&'static str> {
        self.find(codec).ok().and_then(|(name, _)| name.to_str().ok())
    }

    /// The instructions that decoders of sound use on this processor.
    pub(crate) fn instructions(&self) -> Instructions {
        // SAFETY: without arguments.
        Instructions::of(unsafe { (self.functions.av_get_cpu_flags)() })
    }

    /// Opens a decoder by `open`, which chooses its functions by these instructions.
    pub(crate) fn with_instructions<T>(
        &self,
        instructions: Instructions,
        open: impl FnOnce() -> T,
    ) -> T {
        // SAFETY: sets a number, of instructions that this processor has.
        unsafe { (self.functions.av_force_cpu_flags)(instructions.flags) };
        let opened = open();
        // SAFETY: likewise.
        unsafe { (self.functions.av_force_cpu_flags)(DETECTED) };
        opened
    }

    /// What decides a sound's samples: the version, and the instructions of the decoder, which round differently.
    #[must_use]
    pub fn sounds(&self) -> String {
        format!("libavcodec {} (instructions of {})", self.version, self.instructions().name)
    }

    /// The library's decoder for a codec.
    pub(crate) fn find(&self, codec: Codec) -> Result<(&'static CStr, NonNull<c_void>), Missing> {
        let found = decoder_names(codec).iter().find_map(|name| {
            // SAFETY: the name ends with a zero byte; the result is a constant of the library, or null.
            let decoder = unsafe { (self.functions.avcodec_find_decoder_by_name)(name.as_ptr()) };
            Some((*name, NonNull::new(decoder)?))
        });
        let (codec, version) = (codec.name(), self.version.clone());
        found.ok_or(Missing::NoDecoder { codec, version })
    }

    /// The description of an error code.
    pub(crate) fn error_text(&self, code: c_int) -> String {
        let mut text = [0_u8; 128];
        // SAFETY: the function writes at most as many bytes, the last of them zero.
        unsafe { (self.functions.av_strerror)(code, text.as_mut_ptr().cast(), text.len()) };
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default().to_string_lossy();
        text.to_lowercase()
    }
}

/// A set of instructions, as the library numbers them: all or none of a level are used, so that processors of the same
/// level compute the same samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Instructions {
    name: &'static str,
    flags: c_int,
}

impl Instructions {
    /// The levels of this architecture, the best one first. The last one is what all of its processors have.
    const LEVELS: &[Self] = if cfg!(target_arch = "x86_64") {
        // MMX, MMXEXT, SSE, SSE2, CMOV; SSE3, SSSE3, SSE4.1, SSE4.2, AVX, AVX2, FMA3, BMI1, BMI2.
        &[Self { name: "x86-64-v3", flags: 0x7_d3db }, Self { name: "x86-64", flags: 0x101b }]
    } else if cfg!(target_arch = "aarch64") {
        // VFP, NEON, ARMV8.
        &[Self { name: "armv8", flags: 0x68 }]
    } else {
        &[]
    };

    /// The best level of a processor's instructions.
    fn of(detected: c_int) -> Self {
        let level = Self::LEVELS.iter().find(|level| detected & level.flags == level.flags);
        *level.or(Self::LEVELS.last()).unwrap_or(&Self { name: "none", flags: 0 })
    }
}

/// What the loader says, which the error itself leaves to its source.
fn whole_reason(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}

/// Whether the file itself does not exist. The loader reports a missing library that the file needs in nearly the same words.
fn is_absent(error: &libloading::Error, file: &Path) -> bool {
    let text = whole_reason(error);
    text.contains("No such file") && text.contains(&format!("{}:", file.display()))
}

/// The libavcodec in a folder, whatever suffix its name has.
fn in_folder(folder: &Path) -> Option<PathBuf> {
    let files = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    files
        .filter(|file| {
            let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with("libavcodec") && name.contains(".so")
        })
        .max()
}

/// Compares a new frame's defaults with a layout: a moved field would have another one.
fn check_layout(functions: &Functions, layout: Layout) -> Result<(), String> {
    // SAFETY: no arguments.
    let mut new = unsafe { (functions.av_frame_alloc)() };
    if new.is_null() {
        return Err("out of memory".to_owned());
    }
    // SAFETY: a frame of the layout's version is longer than its largest offset; a frame of an unknown version has never
    // had less than 424 bytes, and is not read, because its major version has no layout. Any bytes are numbers.
    let (int, long) = unsafe {
        let read = new.cast::<u8>();
        (
            [
                layout.flags,
                layout.range(),
                layout.primaries(),
                layout.transfer(),
                layout.matrix(),
                layout.chroma_location(),
                layout.errors,
                frame::FORMAT,
            ]
            .map(|at| read.add(at).cast::<c_int>().read_unaligned()),
            [frame::PTS, layout.best_effort_pts()]
                .map(|at| read.add(at).cast::<i64>().read_unaligned()),
        )
    };
    // SAFETY: the frame was allocated above, and is not used any more.
    unsafe { (functions.av_frame_free)(&raw mut new) };
    let expected = [0, 0, UNSPECIFIED, UNSPECIFIED, UNSPECIFIED, 0, 0, -1];
    if int == expected && long == [NO_PTS; 2] {
        return Ok(());
    }
    Err(format!("a new frame has {int:?} and {long:?} where the known layout has its defaults"))
}

/// A name or value as the library takes it.
pub(crate) fn c_string(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_is_that_of_the_release() {
        let release = |name: &str| format!("ID=debian\nVERSION_CODENAME={name}\nX=1\n");
        assert_eq!(package_of(&release("bookworm")), "libavcodec59");
        assert_eq!(package_of(&release("\"trixie\"")), "libavcodec61");
        assert_eq!(package_of("ID=arch\n"), "ffmpeg");
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn instructions_are_all_of_a_level_or_none() {
        // With what the library says of slow ones, and AVX-512.
        assert_eq!(Instructions::of(0x7ff_d7ff).name, "x86-64-v3");
        assert_eq!(Instructions::of(0x7_d3db & !0x1_0000).name, "x86-64");
        assert_eq!(Instructions::of(0).flags, 0x101b);
    }

    #[test]
    fn missing_decoder_is_named_with_the_package() {
        let missing = Missing::NoDecoder { codec: "av1", version: "59.37.100".to_owned() };
        let text = missing.to_string();
        assert!(text.starts_with(
            "libavcodec 59.37.100 has no software decoder for av1; `apt-get install "
        ));
        assert!(Missing::NotFound.to_string().contains("58 to 63"));
    }
}
