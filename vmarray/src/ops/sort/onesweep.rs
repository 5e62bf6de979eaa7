//! Native code of sort kernels for GPUs: PTX for CUDA, and OpenCL C.

use std::sync::{Arc, OnceLock};

use backend_api::{CodeLanguage, Device};

use backend_api::ErrorKind as DeviceErrorKind;
use backend_api::kernel::{Access, Body, Memory, Op, Reg, Type, VerifiedKernel, ViewDecl};
use vmarray_support::texts::PackedTexts;

use crate::ops::executor::{LibraryKernel, native_kernel};

/// Number of values of a digit.
pub(super) const DIGITS: usize = 256;
/// Number of threads in a block that counts digits.
pub(super) const COUNTING_BLOCK: u32 = 256;
/// The size in bytes of a pass's state memory before the states of its tiles.
pub(super) const STATE_HEADER_BYTES: u64 = 64;

/// A kernel that sorts keys by one digit, together with their values if there are any.
///
/// Its views are the keys, their target, the first position of each value of the digit, the same for the keys
/// of the next launch, and the states; with values, also the values and their target. Its scalar parameters
/// are the number of keys, the shift of the digit, and the two words of the key order.
#[derive(Debug)]
pub(super) struct MoveKernel {
    pub kernel: LibraryKernel,
    /// Number of GPU threads in a block.
    pub block: u32,
    /// Number of keys that a block sorts (its tile).
    pub tile: u64,
    /// Two kernels that count digits before this kernel runs, for devices without forward progress. Both have
    /// the states as a view. The first has the same work-items (GPU threads) and scalars as this kernel, and
    /// also the keys as a view. The second runs a thread block of 256 work-items for each digit.
    pub counts: Option<[LibraryKernel; 2]>,
}

/// Returns the native kernel of [`count_kernel`](super::kernels::count_kernel), for OpenCL only.
pub(super) fn count_kernel(key_bytes: u64) -> Option<&'static LibraryKernel> {
    let made = |key: Type| {
        let views = vec![view(Access::Read, key), view(Access::Atomic, Type::U32)];
        let texts = [None, Some(c_text(key, None))];
        kernel("count_digits_of", texts, (COUNTING_BLOCK, 0), views, 3).ok().map(LibraryKernel::native)
    };
    static ALL: OfLengths<LibraryKernel> = OfLengths::new();
    ALL.get(key_bytes, None, |key, _| made(key))
}

/// Returns the native kernel of [`move_kernel`](super::kernels::move_kernel): for OpenCL, and for CUDA if the
/// keys have 8 bytes or values.
pub(super) fn move_kernel(
    device: &Arc<dyn Device>,
    key_bytes: u64,
    value_bytes: Option<u64>,
) -> Option<&'static MoveKernel> {
    static PTX: OfLengths<MoveKernel> = OfLengths::new();
    static C: OfLengths<MoveKernel> = OfLengths::new();
    if device.info().takes(CodeLanguage::OpenClC) {
        C.get(key_bytes, value_bytes, MoveKernel::in_c)
    } else {
        PTX.get(key_bytes, value_bytes, MoveKernel::in_ptx)
    }
}

/// Objects that are created once for each size of keys and values; values have 0, 4 or 8 bytes.
pub(super) struct OfLengths<T>([[OnceLock<Option<T>>; 3]; 4]);

impl<T> OfLengths<T> {
    pub const fn new() -> Self {
        Self([const { [const { OnceLock::new() }; 3] }; 4])
    }

    pub fn get(
        &self,
        key_bytes: u64,
        value_bytes: Option<u64>,
        make: impl FnOnce(Type, Option<Type>) -> Option<T>,
    ) -> Option<&T> {
        let (key, value) = (key_type(key_bytes)?, value_type(value_bytes)?);
        let of_key = &self.0[key_bytes.ilog2() as usize];
        let of_both = &of_key[value.map_or(0, |value| value.bytes() as usize / 4)];
        of_both.get_or_init(|| make(key, value)).as_ref()
    }
}

/// Returns true if values of this length move in the passes of a sort, together with their keys.
pub(crate) fn moves_with_keys(value_bytes: usize) -> bool {
    matches!(value_bytes, 4 | 8)
}

/// Returns the type of values of 4 or 8 bytes, or of no values. Returns `None` for other lengths.
pub(super) fn value_type(bytes: Option<u64>) -> Option<Option<Type>> {
    match bytes {
        None => Some(None),
        Some(4) => Some(Some(Type::U32)),
        Some(8) => Some(Some(Type::U64)),
        Some(_) => None,
    }
}

pub(super) fn key_type(bytes: u64) -> Option<Type> {
    Some(match bytes {
        1 => Type::U8,
        2 => Type::U16,
        4 => Type::U32,
        8 => Type::U64,
        _ => return None,
    })
}

/// Number of work-items in a group of the OpenCL C kernels.
const C_BLOCK: u32 = 256;
/// Number of keys and values of at most 4 bytes that a work-item of the OpenCL C kernels moves.
const C_EACH: u32 = 16;

/// Returns the OpenCL C source of all kernels for a type of keys and values.
fn c_text(key: Type, value: Option<Type>) -> &'static str {
    static ALL: OfLengths<String> = OfLengths::new();
    let bytes = |of: Type| u64::from(of.bytes());
    let made = ALL.get(bytes(key), value.map(bytes), |key, value| Some(c_text_of(key, value)));
    made.map_or("", String::as_str)
}

fn c_text_of(key: Type, value: Option<Type>) -> String {
    let value_is = value.map_or_else(String::new, |value| format!("#define VALUE {}\n", c_name(value)));
    let key_is = format!("#define KEY {}\n#define EACH {}\n", c_name(key), c_each(key, value));
    [key_is, value_is, include_str!("onesweep/onesweep.cl").into()].concat()
}

/// Returns the PTX of a kernel for keys of this type, from the file `{file}_{bytes}` in `onesweep`.
fn ptx(file: &str, key: Type, kernel: &str) -> &'static str {
    text(&format!("{file}_{}/{kernel}", key.bytes()))
}

/// Returns a text from the compressed archive.
fn text(name: &str) -> &'static str {
    static TEXTS: PackedTexts = PackedTexts::new(include_bytes!("onesweep/ptx.zlib"));
    TEXTS.text(name)
}

fn c_name(of: Type) -> &'static str {
    ["uchar", "ushort", "uint", "ulong"][of.bytes().ilog2() as usize]
}

fn c_each(key: Type, value: Option<Type>) -> u32 {
    C_EACH * 4 / key.bytes().max(value.map_or(0, Type::bytes)).max(4)
}

impl MoveKernel {
    fn in_ptx(key: Type, value: Option<Type>) -> Option<Self> {
        let bytes = key.bytes();
        // These numbers must equal the macros `SORT_KEYS` and `SORT_PAIRS` in the kernels' source code.
        let (block, each) = match (bytes, value.map(Type::bytes)) {
            (_, None) | (8, Some(8)) => (384, 11),
            (1 | 2 | 4, Some(4)) => (512, 16),
            (_, Some(_)) => (384, 14),
        };
        let text = match value {
            None => ptx("keys", key, "move_keys_of"),
            Some(value) => text(&format!("pairs_{bytes}_{}/move_pairs_of", value.bytes())),
        };
        let tile = block * each;
        let of_each = bytes + value.map_or(0, Type::bytes);
        let shared = 8 * DIGITS as u32 + 64 + block / 32 * DIGITS as u32 * 4 + tile * of_each;
        Self::new(key, value, [Some(text), None], (block, each, shared))
    }

    fn in_c(key: Type, value: Option<Type>) -> Option<Self> {
        let of_items = (C_BLOCK, c_each(key, value), 0);
        Self::new(key, value, [None, Some(c_text(key, value))], of_items)
    }

    fn new(
        key: Type,
        value: Option<Type>,
        texts: [Option<&str>; 2],
        (block, each, shared): (u32, u32, u32),
    ) -> Option<Self> {
        let name = if value.is_some() { "move_pairs_of" } else { "move_keys_of" };
        let mut views = vec![view(Access::Read, key), view(Access::Append, key)];
        views.extend([view(Access::Read, Type::U64), view(Access::Atomic, Type::U64)]);
        views.push(view(Access::Atomic, Type::U32));
        if let Some(value) = value {
            views.extend([view(Access::Read, value), view(Access::Append, value)]);
        }
        let kernel = kernel(name, texts, (block, shared), views, 4).ok()?;
        Some(Self {
            kernel: LibraryKernel::native(kernel),
            block,
            tile: u64::from(block * each),
            counts: None,
        })
    }
}

fn view(access: Access, of: Type) -> ViewDecl {
    ViewDecl { access, fields: vec![(0, Memory::Value(of))] }
}

/// Creates a kernel from its PTX and OpenCL C. Other devices only report a failure.
fn kernel(
    name: &str,
    texts: [Option<&str>; 2],
    (group_len, shared_bytes): (u32, u32),
    views: Vec<ViewDecl>,
    params: usize,
) -> backend_api::Result<VerifiedKernel> {
    let code = vec![Op::Literal { to: Reg(0), bits: 0 }, Op::Fail { code: 0, detail: Reg(0) }];
    let body = Body {
        registers: vec![Type::U64],
        params: vec![Type::U64; params],
        views,
        group_len: Some(group_len),
        code,
        ..Body::default()
    };
    native_kernel(name, body, texts, shared_bytes)
}

/// Returns true if a device does not support an operation, or has too little memory for it.
pub(crate) fn is_unsupported(error: &backend_api::Error) -> bool {
    matches!(error.kind(), DeviceErrorKind::Unsupported | DeviceErrorKind::OutOfMemory)
}
