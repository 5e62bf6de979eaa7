//! The kernels of sorts on CUDA cards, as devices are given them.

use std::sync::{Arc, LazyLock};

use backend_api::ErrorKind as DeviceErrorKind;
use backend_api::kernel::{Access, Body, Code, Kernel, Memory, Op, Reg, Type, ViewDecl};

/// How many values a digit has.
pub(super) const DIGITS: usize = 256;
/// Threads of a block that moves keys.
pub(super) const BLOCK: u32 = 384;
/// Threads of a block that counts digits.
pub(super) const COUNTING_BLOCK: u32 = 256;
/// Bytes of the states of a pass before those of its tiles.
pub(super) const STATE_HEADER_BYTES: u64 = 64;

/// The kernels for keys of one length.
#[derive(Debug)]
pub(super) struct SortKernels {
    /// Counts digits. Views: keys, counts. Parameters: keys, the two words of the order.
    pub count: Kernel,
    /// Moves keys. Views: keys, where to, where those of each value of the digit go, the same for the keys
    /// that come after, states. Parameters: keys, shift of the digit, the two words of the order.
    pub move_keys: Kernel,
    /// Keys of a tile.
    pub tile: u64,
}

impl SortKernels {
    /// For keys of 1, 2, 4 or 8 bytes.
    pub fn of(bytes: usize) -> Option<&'static Arc<Self>> {
        static ALL: LazyLock<[Option<Arc<SortKernels>>; 4]> = LazyLock::new(|| {
            let made = |bytes, text| SortKernels::new(bytes, text).ok().map(Arc::new);
            [
                made(Type::U8, include_str!("onesweep/keys_1.ptx")),
                made(Type::U16, include_str!("onesweep/keys_2.ptx")),
                made(Type::U32, include_str!("onesweep/keys_4.ptx")),
                made(Type::U64, include_str!("onesweep/keys_8.ptx")),
            ]
        });
        ALL.get(bytes.checked_ilog2()? as usize)?.as_ref()
    }

    fn new(key: Type, text: &str) -> backend_api::Result<Self> {
        let bytes = key.bytes();
        // As `SORT_KERNELS` says.
        let each = if bytes == 8 { 11 } else { 22 };
        let tile = BLOCK * each;
        let shared = 8 * DIGITS as u32 + 64 + BLOCK / 32 * DIGITS as u32 * 4 + tile * bytes;
        let view = |access, of| ViewDecl { access, fields: vec![(0, Memory::Value(of))] };
        let (keys, words) = (view(Access::Read, key), view(Access::Atomic, Type::U64));
        let counting = vec![keys.clone(), words.clone()];
        let (to, states) = (view(Access::Append, key), view(Access::Atomic, Type::U32));
        let moving = vec![keys, to, view(Access::Read, Type::U64), words, states];
        Ok(Self {
            count: kernel("count_digits_of", text, (COUNTING_BLOCK, 0), counting, 3)?,
            move_keys: kernel("move_keys_of", text, (BLOCK, shared), moving, 4)?,
            tile: tile.into(),
        })
    }
}

/// A kernel that fails on devices that do not take its text, and does nothing else there.
fn kernel(
    name: &str,
    text: &str,
    (group_len, shared_bytes): (u32, u32),
    views: Vec<ViewDecl>,
    params: usize,
) -> backend_api::Result<Kernel> {
    let code = vec![Op::Literal { to: Reg(0), bits: 0 }, Op::Fail { code: 0, detail: Reg(0) }];
    let body = Body {
        registers: vec![Type::U64],
        params: vec![Type::U64; params],
        views,
        group_len: Some(group_len),
        code,
        ..Body::default()
    };
    // SAFETY: it takes two or five views, the number of items, and as many words as there are parameters. It
    // reads the elements of views, and writes to those of views that are declared so, since `on_device`,
    // which alone launches it, gives it numbers that are inside of them. It waits for blocks that began
    // before it, and for nothing else, so it ends.
    let text = unsafe { Code::new(name) }.ptx(text).with_shared_bytes(shared_bytes);
    Ok(Kernel::new(body)?.named(name).with_code(text))
}

/// Whether a device has said that it cannot do something, or has too little memory.
pub(super) fn is_refusal(error: &backend_api::Error) -> bool {
    matches!(error.kind(), DeviceErrorKind::Unsupported | DeviceErrorKind::OutOfMemory)
}
