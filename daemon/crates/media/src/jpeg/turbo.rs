//! The only file that calls libjpeg-turbo: a decompressor handle that is opened on a file and decodes from it.
//!
//! The caller decides, in safe code, which warnings matter, which region is decoded and how colours are converted.
//! `unsafe` is needed because libjpeg-turbo is a C library.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::fmt;
use std::ptr::NonNull;

use turbojpeg_sys as sys;

use crate::reduction::Reduction;
use crate::size::{Rectangle, Size};

/// A decompressor, used for successive files.
pub(super) struct TurboDecoder {
    handle: NonNull<c_void>,
    /// Whether the library gave a file up. It leaves the handle in the middle of a header that it refused (seen with
    /// 3.1) and would return this file's state for the next one, so the handle is replaced then.
    has_failed: bool,
}

// SAFETY: a TurboJPEG handle is not bound to the thread that made it; it must not be used by two at once, which
// `&mut self` on every method ensures.
unsafe impl Send for TurboDecoder {}

impl fmt::Debug for TurboDecoder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("TurboDecoder").finish_non_exhaustive()
    }
}

/// The pixel format of the decoded rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PixelFormat {
    Grey,
    Rgb,
    Rgba,
    Cmyk,
}

impl PixelFormat {
    const fn code(self) -> c_int {
        match self {
            Self::Grey => sys::TJPF_TJPF_GRAY,
            Self::Rgb => sys::TJPF_TJPF_RGB,
            Self::Rgba => sys::TJPF_TJPF_RGBA,
            Self::Cmyk => sys::TJPF_TJPF_CMYK,
        }
    }

    /// Bytes of one pixel.
    pub(super) const fn bytes(self) -> usize {
        match self {
            Self::Grey => 1,
            Self::Rgb => 3,
            Self::Rgba | Self::Cmyk => 4,
        }
    }
}

/// The result of a call of libjpeg-turbo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Success.
    Fine,
    /// A warning; it continued.
    Warned,
    /// It gave up.
    Failed(String),
}

/// A file whose header has been read. Borrows both, so that the file cannot change before it is decoded.
#[derive(Debug)]
pub(super) struct OpenJpeg<'d, 'f> {
    decoder: &'d mut TurboDecoder,
    file: &'f [u8],
    /// As coded.
    pub(super) size: Size,
    /// Whether the pixels are stored as cyan, magenta, yellow and black.
    pub(super) is_cmyk: bool,
    /// Whether there is only luma.
    pub(super) is_grey: bool,
    /// Whether it is coded without blocks; it cannot be reduced then.
    pub(super) is_lossless: bool,
    /// The width of the blocks in which it is coded; `None` if regions are not supported.
    pub(super) block_width: Option<u32>,
}

impl TurboDecoder {
    /// A new handle; `None` if there is not enough memory.
    pub(super) fn new() -> Option<Self> {
        // SAFETY: no preconditions; null is checked for.
        let handle = unsafe { sys::tj3Init(sys::TJINIT_TJINIT_DECOMPRESS as c_int) };
        let decoder = Self { handle: NonNull::new(handle.cast())?, has_failed: false };
        // ICC profiles are not used: do not copy them. More scans than this are an attack, as in the library's fuzzers.
        decoder.set(sys::TJPARAM_TJPARAM_SAVEMARKERS as c_int, 0);
        decoder.set(sys::TJPARAM_TJPARAM_SCANLIMIT as c_int, 500);
        Some(decoder)
    }

    fn set(&self, parameter: c_int, value: c_int) {
        // SAFETY: the handle is live; unknown parameters and values are refused, not undefined.
        unsafe { sys::tj3Set(self.handle.as_ptr().cast(), parameter, value) };
    }

    fn get(&self, parameter: c_int) -> c_int {
        // SAFETY: the handle is live; unknown parameters give −1.
        unsafe { sys::tj3Get(self.handle.as_ptr().cast(), parameter) }
    }

    /// The message of the last call that returned −1.
    fn message(&self) -> String {
        // SAFETY: the handle is live; the string is NUL-terminated, belongs to the handle and is copied before the next
        // call can change it.
        let text = unsafe { CStr::from_ptr(sys::tj3GetErrorStr(self.handle.as_ptr().cast())) };
        text.to_string_lossy().into_owned()
    }

    fn verdict(&mut self, status: c_int) -> Verdict {
        if status == 0 {
            return Verdict::Fine;
        }
        // The library's error code is "warning" even for a failure after a warning. The message distinguishes them: it
        // is the first warning's, unless a failure overwrote it.
        let message = self.message();
        if is_warning(&message) {
            return Verdict::Warned;
        }
        self.has_failed = true;
        Verdict::Failed(message)
    }

    /// Reads a file's header. Decoding is refused if the library would need more than `memory_bytes`.
    pub(super) fn open<'d, 'f>(
        &'d mut self,
        file: &'f [u8],
        memory_bytes: u64,
    ) -> Result<OpenJpeg<'d, 'f>, String> {
        if self.has_failed {
            *self = Self::new().ok_or("out of memory for the JPEG decoder")?;
        }
        // Its buffer size is known from the header that the caller has read; a file may have another one.
        let mebibytes = c_int::try_from(memory_bytes.div_ceil(1 << 20) + 1).unwrap_or(c_int::MAX);
        self.set(sys::TJPARAM_TJPARAM_MAXMEMORY as c_int, mebibytes);
        let whole = sys::tjregion { x: 0, y: 0, w: 0, h: 0 };
        // SAFETY: the handle is live; an all-zero region is always accepted and undoes the last one.
        unsafe { sys::tj3SetCroppingRegion(self.handle.as_ptr().cast(), whole) };
        // SAFETY: the handle is live; the library reads `file.len()` bytes from `file` and nothing else.
        let status = unsafe {
            sys::tj3DecompressHeader(
                self.handle.as_ptr().cast(),
                file.as_ptr(),
                file.len() as sys::size_t,
            )
        };
        if let Verdict::Failed(message) = self.verdict(status) {
            return Err(message);
        }
        let side = |value: c_int| u32::try_from(value).unwrap_or(0);
        let size = Size {
            width: side(self.get(sys::TJPARAM_TJPARAM_JPEGWIDTH as c_int)),
            height: side(self.get(sys::TJPARAM_TJPARAM_JPEGHEIGHT as c_int)),
        };
        let colour = self.get(sys::TJPARAM_TJPARAM_COLORSPACE as c_int);
        let is = |code: sys::TJCS| c_int::try_from(code) == Ok(colour);
        let is_lossless = self.get(sys::TJPARAM_TJPARAM_LOSSLESS as c_int) != 0;
        let block_width = match self.get(sys::TJPARAM_TJPARAM_SUBSAMP as c_int) {
            sys::TJSAMP_TJSAMP_444
            | sys::TJSAMP_TJSAMP_GRAY
            | sys::TJSAMP_TJSAMP_440
            | sys::TJSAMP_TJSAMP_441 => Some(8),
            sys::TJSAMP_TJSAMP_422 | sys::TJSAMP_TJSAMP_420 => Some(16),
            sys::TJSAMP_TJSAMP_411 => Some(32),
            _ => None,
        };
        Ok(OpenJpeg {
            size,
            is_cmyk: is(sys::TJCS_TJCS_CMYK) || is(sys::TJCS_TJCS_YCCK),
            is_grey: is(sys::TJCS_TJCS_GRAY),
            is_lossless,
            block_width: block_width.filter(|_| !is_lossless),
            decoder: self,
            file,
        })
    }
}

impl OpenJpeg<'_, '_> {
    /// Decodes a region, whose left edge must be a multiple of `block_width`, or the whole image; both of the image
    /// reduced by `reduction`. Rows have no gaps.
    ///
    /// # Panics
    /// The length of `pixels` differs from the region's, the region is outside the image, or a lossless file is to be
    /// reduced.
    pub(super) fn decode(
        &mut self,
        region: Rectangle,
        reduction: Reduction,
        format: PixelFormat,
        pixels: &mut [u8],
    ) -> Verdict {
        // As the library computes it: a quotient that is rounded up. It ignores the factor for lossless files.
        let size = reduction.size(self.size);
        let whole = region == Rectangle::whole(size);
        let inside = |start: u32, length: u32, limit: u32| {
            length > 0 && start.checked_add(length).is_some_and(|end| end <= limit)
        };
        assert!(
            inside(region.left, region.width, size.width)
                && inside(region.top, region.height, size.height)
                && (reduction == Reduction::NONE || !self.is_lossless)
                && pixels.len() == region.width as usize * region.height as usize * format.bytes(),
            "a buffer of {} bytes for {region:?} of {size:?}",
            pixels.len()
        );
        let number = |value: u32| c_int::try_from(value).unwrap_or(c_int::MAX);
        let handle = self.decoder.handle.as_ptr();
        let cropping = if whole {
            sys::tjregion { x: 0, y: 0, w: 0, h: 0 }
        } else {
            sys::tjregion {
                x: number(region.left),
                y: number(region.top),
                w: number(region.width),
                h: number(region.height),
            }
        };
        let factor = sys::tjscalingfactor { num: 1, denom: number(reduction.factor()) };
        // SAFETY: the handle is live; factors that the library does not have are refused with −1.
        let mut status = unsafe { sys::tj3SetScalingFactor(handle.cast(), factor) };
        if status == 0 {
            // SAFETY: the handle is live and has read a header; regions that do not fit are refused with −1.
            status = unsafe { sys::tj3SetCroppingRegion(handle.cast(), cropping) };
        }
        if status != 0 {
            self.decoder.has_failed = true;
            return Verdict::Failed(self.decoder.message());
        }
        let pitch = number(region.width) * number(u32::try_from(format.bytes()).unwrap_or(4));
        // SAFETY: the handle is live. The library reads the file's bytes only. It writes `region.height` rows (all of
        // the image's when no region is set) of `pitch` bytes, of the image made smaller by the factor that was set
        // above: the size is read again from the same bytes, which the borrow has kept unchanged since `open`, by a
        // handle that no earlier file has left in its state (`has_failed`), so it is `self.size`, from which `size`
        // follows as in the library (jdiv_round_up), and against that the buffer was checked. The library ignores the
        // factor only for lossless files, which were refused above.
        let status = unsafe {
            sys::tj3Decompress8(
                handle.cast(),
                self.file.as_ptr(),
                self.file.len() as sys::size_t,
                pixels.as_mut_ptr(),
                pitch,
                format.code(),
            )
        };
        self.decoder.verdict(status)
    }
}

impl Drop for TurboDecoder {
    fn drop(&mut self) {
        // SAFETY: the handle is live and is not used again.
        unsafe { sys::tj3Destroy(self.handle.as_ptr().cast()) };
    }
}

/// The coding of a test's file.
#[cfg(test)]
#[derive(Debug, Clone, Copy)]
pub(super) struct TestCoding {
    pub(super) subsampling: sys::TJSAMP,
    pub(super) arithmetic: bool,
    pub(super) progressive: bool,
    pub(super) lossless: bool,
}

/// Encodes RGB or grey for tests, in codings that jpeg-encoder does not support, such as arithmetic coding.
#[cfg(test)]
pub(super) fn encode_for_tests(pixels: &[u8], size: Size, coding: TestCoding) -> Vec<u8> {
    let side = |length: u32| c_int::try_from(length).unwrap();
    let count = size.width as usize * size.height as usize;
    let format = if pixels.len() == count { PixelFormat::Grey } else { PixelFormat::Rgb };
    assert_eq!(pixels.len(), count * format.bytes());
    // SAFETY: no preconditions; null is checked for.
    let handle = unsafe { sys::tj3Init(sys::TJINIT_TJINIT_COMPRESS as c_int) };
    assert!(!handle.is_null());
    for (parameter, value) in [
        (sys::TJPARAM_TJPARAM_SUBSAMP, coding.subsampling as c_int),
        (sys::TJPARAM_TJPARAM_QUALITY, 90),
        (sys::TJPARAM_TJPARAM_ARITHMETIC, c_int::from(coding.arithmetic)),
        (sys::TJPARAM_TJPARAM_PROGRESSIVE, c_int::from(coding.progressive)),
        (sys::TJPARAM_TJPARAM_LOSSLESS, c_int::from(coding.lossless)),
    ] {
        // SAFETY: the handle is live; unknown parameters and values are refused, not undefined.
        let status = unsafe { sys::tj3Set(handle, parameter as c_int, value) };
        assert!(status == 0, "{coding:?}");
    }
    let (mut file, mut length) = (std::ptr::null_mut(), 0);
    // SAFETY: the handle is live and `pixels` has height rows of width pixels without gaps; a null buffer lets the library
    // allocate one, whose place and length it writes to the two variables.
    let status = unsafe {
        sys::tj3Compress8(
            handle,
            pixels.as_ptr(),
            side(size.width),
            0,
            side(size.height),
            format.code(),
            &raw mut file,
            &raw mut length,
        )
    };
    assert!(status == 0, "{coding:?}");
    // SAFETY: the library has just written `length` bytes there and nobody else has the pointer.
    let bytes =
        unsafe { std::slice::from_raw_parts(file, usize::try_from(length).unwrap()) }.to_vec();
    // SAFETY: both were made by the library above and are not used again.
    unsafe {
        sys::tj3Free(file.cast());
        sys::tj3Destroy(handle);
    }
    bytes
}

/// Whether a message is one of libjpeg's warnings (named `JWRN_…` in its jerror.h).
fn is_warning(message: &str) -> bool {
    [
        "Unknown Adobe color transform code",
        "Corrupt JPEG data:",
        "Inconsistent progression sequence",
        "Warning:",
        "Premature end of JPEG file",
        "Invalid SOS parameters for sequential JPEG",
        "Application transferred too many scanlines",
    ]
    .iter()
    .any(|start| message.starts_with(start))
}
