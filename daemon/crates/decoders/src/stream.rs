//! One decoder: packets in, pictures or blocks of sound out.
//!
//! States: Open ──send, receive──► Open ──finish──► Draining ──receive until none──► Drained ──flush──► Open.
//! The decoder owns its context, packet and frame, and frees them when it is dropped.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;

use crate::layout::{frame, packet, parameters};
use crate::library::{Library, Missing, NO_PTS, Opaque, c_string};
use crate::picture::{Colors, Format};
use forebay_video::codec::Codec;

/// `AVERROR(EAGAIN)`: more packets are needed.
const AGAIN: c_int = -11;
/// `AVERROR(ENOMEM)`.
const NO_MEMORY: c_int = -12;
/// `AVERROR_EOF`.
const END: c_int = -i32::from_le_bytes(*b"EOF ");
/// Zero bytes after a configuration: `AV_INPUT_BUFFER_PADDING_SIZE`.
const PADDING: usize = 64;
/// `AV_PKT_FLAG_KEY` and `AV_PKT_FLAG_DISCARD`.
const KEY: c_int = 1;
const DISCARD: c_int = 4;
/// `AV_FRAME_FLAG_CORRUPT`.
const CORRUPT: c_int = 1;
/// `AVCOL_RANGE_MPEG` and `AVCOL_RANGE_JPEG`.
const LIMITED: c_int = 1;
const FULL: c_int = 2;
const PLANES: usize = 8;
/// `AV_SAMPLE_FMT_FLTP`.
const FLOATS_IN_PLANES: c_int = 8;
/// Of `err_detect`.
const STRICT: &str = "explode";

/// Why packets cannot be decoded. Lowercase.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StreamError {
    #[error(transparent)]
    Missing(#[from] Missing),
    /// The decoder's own words.
    #[error("{0}")]
    Refused(String),
    #[error("it needs more memory than a picture of its announced size")]
    Memory,
}

/// What is sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent<'p> {
    pub(crate) bytes: &'p [u8],
    pub(crate) pts: i64,
    pub(crate) dts: i64,
    pub(crate) is_key: bool,
    pub(crate) is_discarded: bool,
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Decoder<'l> {
    library: &'l Library,
    context: NonNull<c_void>,
    packet: NonNull<c_void>,
    frame: NonNull<c_void>,
    skips_unreferenced: bool,
    is_strict: bool,
}

impl<'l> Decoder<'l> {
    /// Opens the decoder for a codec. Pictures of more than `max_pixels` are refused by the library itself.
    pub(crate) fn open(
        library: &'l Library,
        codec: Codec,
        configuration: &[u8],
        max_pixels: u64,
    ) -> Result<Self, StreamError> {
        let (_, found) = library.find(codec)?;
        let functions = &library.functions;
        // SAFETY: `found` is a decoder of this library; the others take nothing.
        let [mut context, mut packet, mut frame] = unsafe {
            [
                (functions.avcodec_alloc_context3)(found.as_ptr()),
                (functions.av_packet_alloc)(),
                (functions.av_frame_alloc)(),
            ]
        };
        let all = (NonNull::new(context), NonNull::new(packet), NonNull::new(frame));
        let (Some(kept_context), Some(kept_packet), Some(kept_frame)) = all else {
            // SAFETY: each is from its function above or null, which the functions accept, and is not used any more.
            unsafe {
                (functions.avcodec_free_context)(&raw mut context);
                (functions.av_packet_free)(&raw mut packet);
                (functions.av_frame_free)(&raw mut frame);
            }
            return Err(StreamError::Memory);
        };
        let decoder = Self {
            library,
            context: kept_context,
            packet: kept_packet,
            frame: kept_frame,
            skips_unreferenced: false,
            is_strict: true,
        };
        decoder.configure(configuration)?;
        decoder.set_number(c"threads", 1);
        decoder.set_number(c"max_pixels", i64::try_from(max_pixels).unwrap_or(i64::MAX));
        // A damaged slice is an error: without this some decoders fill it with other pixels and say nothing.
        decoder.set(c"err_detect", STRICT);
        if codec == Codec::H264 {
            // Pictures after a key picture that is no IDR: the library says of each whether it is whole.
            decoder.set(c"flags", "+output_corrupt");
        }
        if !codec.is_video() {
            // The library itself would drop nothing: it is said which frames are heard.
            decoder.set(c"flags2", "+skip_manual");
        }
        if codec == Codec::Mpeg4 {
            // Its standard leaves the transform's rounding open: this one has the same results on all processors.
            decoder.set(c"idct", "simple");
            decoder.set(c"flags", "+bitexact");
        }
        let open = || {
            let (context, none) = (kept_context.as_ptr(), std::ptr::null_mut());
            // SAFETY: context and decoder belong together; there are no more options.
            unsafe { (functions.avcodec_open2)(context, found.as_ptr(), none) }
        };
        // Pictures are the same by any instructions, sounds are not.
        let code = if codec.is_video() {
            open()
        } else {
            library.with_instructions(library.instructions(), open)
        };
        decoder.checked(code)?;
        Ok(decoder)
    }

    /// Sets the configuration before the decoder is opened.
    fn configure(&self, configuration: &[u8]) -> Result<(), StreamError> {
        let functions = &self.library.functions;
        let Ok(size) = c_int::try_from(configuration.len()) else {
            return Err(StreamError::Memory);
        };
        if size == 0 {
            return Ok(());
        }
        // SAFETY: no arguments.
        let mut parameters = unsafe { (functions.avcodec_parameters_alloc)() };
        if parameters.is_null() {
            return Err(StreamError::Memory);
        }
        let context = self.context.as_ptr();
        // SAFETY: the bytes are copied into memory that the library allocated for them, with the zeros that decoders
        // read beyond; the parameters own it from then on and are freed once. The offsets are those of the structure in
        // all versions.
        let code = unsafe {
            let code = (functions.avcodec_parameters_from_context)(parameters, context);
            let copy = (functions.av_mallocz)(configuration.len() + PADDING).cast::<u8>();
            let code = if copy.is_null() {
                NO_MEMORY
            } else {
                copy.copy_from_nonoverlapping(configuration.as_ptr(), configuration.len());
                let fields = parameters.cast::<u8>();
                fields.add(parameters::EXTRADATA).cast::<*mut u8>().write(copy);
                fields.add(parameters::EXTRADATA_SIZE).cast::<c_int>().write(size);
                code.min((functions.avcodec_parameters_to_context)(context, parameters))
            };
            (functions.avcodec_parameters_free)(&raw mut parameters);
            code
        };
        self.checked(code)
    }

    /// Sets an option; one that this version does not have changes nothing.
    fn set(&self, name: &CStr, value: &str) {
        let value = c_string(value);
        // SAFETY: the context begins with its class, as options demand; both strings end with a zero byte.
        unsafe {
            (self.library.functions.av_opt_set)(
                self.context.as_ptr(),
                name.as_ptr(),
                value.as_ptr(),
                0,
            )
        };
    }

    fn set_number(&self, name: &CStr, value: i64) {
        // SAFETY: as in `set`.
        unsafe {
            (self.library.functions.av_opt_set_int)(self.context.as_ptr(), name.as_ptr(), value, 0)
        };
    }

    /// Sets how many pictures a picture may overtake before it is shown. A file's decoder would find the number while it
    /// decodes, and lose the first pictures that show it.
    pub(crate) fn set_reordering(&mut self, pictures: usize) {
        self.set_number(c"has_b_frames", i64::try_from(pictures).unwrap_or(0));
    }

    /// Whether pictures that no other picture needs are left out, from the next packet on.
    pub(crate) fn skip_unreferenced(&mut self, skips: bool) {
        if skips != self.skips_unreferenced {
            self.skips_unreferenced = skips;
            self.set(c"skip_frame", if skips { "noref" } else { "default" });
        }
    }

    /// Whether any error is the packet's, from the next one on; otherwise the library goes on where it can, and flags the
    /// pictures that lack something.
    pub(crate) fn set_strict(&mut self, is_strict: bool) {
        if is_strict != self.is_strict {
            self.is_strict = is_strict;
            self.set(c"err_detect", if is_strict { STRICT } else { "0" });
        }
    }

    /// Sends a packet. All pictures must have been received before.
    pub(crate) fn send(&mut self, sent: Sent<'_>) -> Result<(), StreamError> {
        let functions = &self.library.functions;
        let packet = self.packet.as_ptr();
        let Ok(size) = c_int::try_from(sent.bytes.len()) else { return Err(StreamError::Memory) };
        // SAFETY: the packet is empty; the function allocates `size` bytes and the zeros beyond them.
        self.checked(unsafe { (functions.av_new_packet)(packet, size) })?;
        let flags = if sent.is_key { KEY } else { 0 } | if sent.is_discarded { DISCARD } else { 0 };
        // SAFETY: the packet has memory for the bytes, which do not overlap with it; the offsets are those of the
        // structure in all versions. The library takes a separate reference.
        let code = unsafe {
            let fields = packet.cast::<u8>();
            let data = fields.add(packet::DATA).cast::<*mut u8>().read();
            data.copy_from_nonoverlapping(sent.bytes.as_ptr(), sent.bytes.len());
            fields.add(packet::PTS).cast::<i64>().write(sent.pts);
            fields.add(packet::DTS).cast::<i64>().write(sent.dts);
            fields.add(packet::FLAGS).cast::<c_int>().write(flags);
            let code = (functions.avcodec_send_packet)(self.context.as_ptr(), packet);
            (functions.av_packet_unref)(packet);
            code
        };
        self.checked(code)
    }

    /// Sends a packet of sound. All blocks must have been received before.
    pub(crate) fn send_sound(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        self.send(Sent { bytes, pts: NO_PTS, dts: NO_PTS, is_key: true, is_discarded: false })
    }

    /// Says that no more packets come: the rest of the pictures can be received.
    pub(crate) fn finish(&mut self) -> Result<(), StreamError> {
        let context = self.context.as_ptr();
        // SAFETY: no packet means the end.
        let code =
            unsafe { (self.library.functions.avcodec_send_packet)(context, std::ptr::null_mut()) };
        if code == END { Ok(()) } else { self.checked(code) }
    }

    /// Forgets all packets: those of another place of the stream may follow.
    pub(crate) fn flush(&mut self) {
        // SAFETY: the context is open.
        unsafe { (self.library.functions.avcodec_flush_buffers)(self.context.as_ptr()) };
    }

    /// The next picture, valid until the next call; `None`: packets are needed, or it was the last one.
    pub(crate) fn receive(&mut self) -> Result<Option<Picture<'_>>, StreamError> {
        if self.receive_frame()? { self.picture().map(Some) } else { Ok(None) }
    }

    /// The next block of sound, likewise.
    pub(crate) fn receive_block(&mut self) -> Result<Option<Block<'_>>, StreamError> {
        if self.receive_frame()? { self.block().map(Some) } else { Ok(None) }
    }

    /// Fills the frame, if there is one.
    fn receive_frame(&mut self) -> Result<bool, StreamError> {
        let functions = &self.library.functions;
        let frame = self.frame.as_ptr();
        // SAFETY: both are of this decoder; the function empties the frame first.
        let code = unsafe { (functions.avcodec_receive_frame)(self.context.as_ptr(), frame) };
        if code == AGAIN || code == END {
            return Ok(false);
        }
        self.checked(code)?;
        Ok(true)
    }

    fn checked(&self, code: c_int) -> Result<(), StreamError> {
        match code {
            0.. => Ok(()),
            NO_MEMORY => Err(StreamError::Memory),
            code => Err(StreamError::Refused(self.library.error_text(code))),
        }
    }

    /// An i32 of the current frame.
    fn number(&self, at: usize) -> c_int {
        // SAFETY: `at` is the offset of such a field in this version's frame, which is allocated; any bytes are one.
        unsafe { self.frame.as_ptr().cast::<u8>().add(at).cast::<c_int>().read_unaligned() }
    }

    fn picture(&self) -> Result<Picture<'_>, StreamError> {
        let layout = self.library.layout;
        let refused = |reason: String| Err(StreamError::Refused(reason));
        let (Ok(width), Ok(height)) =
            (u32::try_from(self.number(frame::WIDTH)), u32::try_from(self.number(frame::HEIGHT)))
        else {
            return refused("a picture without a size".to_owned());
        };
        let name = self.format_name();
        let Some((format, is_full)) = Format::of_name(&name) else {
            return refused(format!("pictures of the format `{name}` are not supported"));
        };
        let code = |at| u8::try_from(self.number(at)).unwrap_or(2);
        let full_range = match self.number(layout.range()) {
            FULL => Some(true),
            LIMITED => Some(false),
            _ => is_full.then_some(true),
        };
        let colors = Colors {
            matrix: code(layout.matrix()),
            primaries: code(layout.primaries()),
            transfer: code(layout.transfer()),
            full_range,
            chroma_location: code(layout.chroma_location()),
        };
        // SAFETY: an i64 of the frame, as in `number`.
        let pts = unsafe { self.frame.as_ptr().cast::<u8>().add(frame::PTS).cast::<i64>().read() };
        let lacks_references = self.number(layout.flags) & CORRUPT != 0;
        let is_made_up = self.number(layout.errors) != 0;
        let size = (width, height);
        let decoder = self;
        let picture = Picture { decoder, size, format, colors, pts, lacks_references, is_made_up };
        for plane in 0..format.planes() {
            let (width, _) = format.plane_size(plane, picture.size);
            let (start, pitch) = picture.plane(plane);
            if start.is_null() || pitch.unsigned_abs() < width * format.sample_bytes() {
                return refused("a picture without pixels".to_owned());
            }
        }
        Ok(picture)
    }

    fn block(&self) -> Result<Block<'_>, StreamError> {
        let refused = |reason: &str| Err(StreamError::Refused(reason.to_owned()));
        if self.number(frame::FORMAT) != FLOATS_IN_PLANES {
            return refused("its decoder gives no floats in planes");
        }
        let Ok(frames) = usize::try_from(self.number(frame::FRAMES)) else {
            return refused("a block of sound without a length");
        };
        let mut rate = 0;
        // SAFETY: the context begins with its class, the name ends with a zero byte, and the number is written before it is
        // read, or left.
        unsafe {
            (self.library.functions.av_opt_get_int)(
                self.context.as_ptr(),
                c"ar".as_ptr(),
                0,
                &raw mut rate,
            );
        }
        Ok(Block { decoder: self, frames, rate })
    }

    fn format_name(&self) -> String {
        // SAFETY: the result is a constant of the library, or null.
        let name =
            unsafe { (self.library.functions.av_get_pix_fmt_name)(self.number(frame::FORMAT)) };
        if name.is_null() {
            return "unknown".to_owned();
        }
        // SAFETY: it ends with a zero byte.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }
}

impl Drop for Decoder<'_> {
    fn drop(&mut self) {
        let functions = &self.library.functions;
        let mut all: [Opaque; 3] = [self.context, self.packet, self.frame].map(NonNull::as_ptr);
        let [context, packet, frame] = &mut all;
        // SAFETY: each was allocated by `open` and is freed once; the frame's pixels go with its reference.
        unsafe {
            (functions.avcodec_free_context)(context);
            (functions.av_packet_free)(packet);
            (functions.av_frame_free)(frame);
        }
    }
}

/// A block of sound that the decoder holds: floats, a plane for each channel.
#[derive(Debug)]
pub(crate) struct Block<'d> {
    decoder: &'d Decoder<'d>,
    frames: usize,
    rate: i64,
}

impl Block<'_> {
    /// Frames a second, as the decoder says.
    pub(crate) const fn rate(&self) -> i64 {
        self.rate
    }

    /// The planes of the channels, of which there are at most eight.
    pub(crate) fn planes(&self) -> Vec<&[f32]> {
        let fields = self.decoder.frame.as_ptr().cast::<u8>();
        let starts = (0..PLANES).map(|plane| {
            // SAFETY: an array of eight pointers at this offset of a frame of any version; the planes of channels come
            // first, and are null beyond them.
            unsafe { fields.add(frame::DATA).cast::<*const f32>().add(plane).read() }
        });
        starts
            .take_while(|start| !start.is_null())
            // SAFETY: the decoder has allocated a plane of so many samples for each channel, aligned for its vectors; it
            // writes to them only when a packet is sent, which needs the decoder's exclusive borrow.
            .map(|start| unsafe { std::slice::from_raw_parts(start, self.frames) })
            .collect()
    }
}

/// A picture that the decoder holds.
#[derive(Debug)]
pub(crate) struct Picture<'d> {
    decoder: &'d Decoder<'d>,
    pub(crate) size: (u32, u32),
    pub(crate) format: Format,
    pub(crate) colors: Colors,
    /// `i64::MIN`: none.
    pub(crate) pts: i64,
    /// Whether the decoder says that pictures before it, which were not decoded, may be needed for some of its pixels.
    pub(crate) lacks_references: bool,
    /// Whether the decoder says that it has made up pixels for damaged ones.
    pub(crate) is_made_up: bool,
}

const _: () = assert!(NO_PTS == i64::MIN);

impl Picture<'_> {
    /// Where a plane's first row is, and the bytes to the next one.
    fn plane(&self, plane: usize) -> (*const u8, isize) {
        assert!(plane < PLANES);
        let fields = self.decoder.frame.as_ptr().cast::<u8>();
        // SAFETY: arrays of eight pointers and eight numbers at these offsets of a frame of any version.
        unsafe {
            let start = fields.add(frame::DATA).cast::<*const u8>().add(plane).read();
            let pitch = fields.add(frame::LINESIZE).cast::<c_int>().add(plane).read();
            (start, isize::try_from(pitch).unwrap_or(0))
        }
    }

    /// The rows of a plane, from the top.
    pub(crate) fn rows(&self, plane: usize) -> impl Iterator<Item = &[u8]> {
        let (width, height) = self.format.plane_size(plane, self.size);
        let (start, pitch) = self.plane(plane);
        let bytes = width * self.format.sample_bytes();
        (0..height).map(move |row| {
            let offset = pitch * isize::try_from(row).unwrap_or(0);
            // SAFETY: the decoder has allocated `height` rows of at least `bytes` bytes for this plane, `pitch` apart;
            // it writes to them only when a packet is sent, which needs the decoder's exclusive borrow.
            unsafe { std::slice::from_raw_parts(start.offset(offset), bytes) }
        })
    }
}
