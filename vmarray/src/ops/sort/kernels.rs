//! Kernels of sorts, scans and searches for runs on devices, and the choice of the kernel that a device
//! runs for each stage.
//!
//! Most stages are written in the kernel language. [`runs_native_code`] lists the stages with native code, in
//! PTX or OpenCL C, for devices on which the kernel language may be slower.

mod count;
mod keys;
mod lines;
mod look_back;
mod merge;
mod passes;
mod runs;
mod scan;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

use backend_api::kernel::Type;
use backend_api::{CodeLanguage, Device};

pub(crate) use self::lines::ROW_BLOCK;
pub(crate) use self::look_back::{HAS_CARRIES, IS_EXCLUSIVE, LOOK_BACK_BLOCK, LOOK_BACK_TILE, SUMS_ONLY};
use super::onesweep::{self, MoveKernel, OfLengths};
use crate::ops::executor::LibraryKernel;

/// The stages that have native code for some device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Count,
    /// The move of keys of at most 4 bytes without values.
    MoveShort,
    Move,
}

fn runs_native_code(stage: Stage, device: &Arc<dyn Device>) -> bool {
    /// If the variable `VMARRAY_SORT_KERNELS` is `lowered`, no device runs native code.
    static ARE_ALL_LOWERED: OnceLock<bool> = OnceLock::new();
    let lowered = || std::env::var_os("VMARRAY_SORT_KERNELS").is_some_and(|value| value == "lowered");
    let language = [CodeLanguage::Ptx, CodeLanguage::OpenClC].into_iter().find(|of| device.info().takes(*of));
    let is_native = match language {
        Some(CodeLanguage::Ptx) => stage == Stage::Move,
        Some(CodeLanguage::OpenClC) => true,
        _ => false,
    };
    is_native && !*ARE_ALL_LOWERED.get_or_init(lowered)
}

/// Returns the kernel that counts the digits of keys of 1, 2, 4 or 8 bytes. Its views are the keys, and two
/// words for each count. Its values are the number of keys, and the two words of the key order.
pub(super) fn count_kernel(device: &Arc<dyn Device>, key_bytes: u64) -> Option<&'static LibraryKernel> {
    static LOWERED: OfLengths<LibraryKernel> = OfLengths::new();
    if runs_native_code(Stage::Count, device) {
        return onesweep::count_kernel(key_bytes);
    }
    LOWERED.get(key_bytes, None, |key, _| Some(count::of(key)))
}

/// Returns the kernel that moves keys of 1, 2, 4 or 8 bytes, with values of 4 or 8 bytes or without values.
pub(super) fn move_kernel(
    device: &Arc<dyn Device>,
    key_bytes: u64,
    value_bytes: Option<u64>,
) -> Option<&'static MoveKernel> {
    static WITH_WAITS: OfLengths<MoveKernel> = OfLengths::new();
    static WITHOUT_WAITS: OfLengths<MoveKernel> = OfLengths::new();
    let stage = if key_bytes <= 4 && value_bytes.is_none() { Stage::MoveShort } else { Stage::Move };
    if runs_native_code(stage, device) {
        return onesweep::move_kernel(device, key_bytes, value_bytes);
    }
    let waits = device.info().forward_progress;
    let all = if waits { &WITH_WAITS } else { &WITHOUT_WAITS };
    all.get(key_bytes, value_bytes, |key, value| {
        Some(MoveKernel {
            kernel: passes::of(key, value, waits),
            block: passes::BLOCK as u32,
            tile: passes::tile(key, value) as u64,
            counts: (!waits).then(|| passes::counts_of(key, value)),
        })
    })
}

/// Returns the kernel that finds the start and the end in the first run of each tile of a merge, for keys of
/// 1, 2, 4 or 8 bytes. Each work-item processes a tile. Its views are the keys of both runs, and two numbers
/// for each tile. Its values are the six words of a [`StripedRange`](super::merge::StripedRange), the lengths
/// of the runs, and the two words of the key order.
pub(super) fn split_kernel(key_bytes: u64) -> Option<&'static LibraryKernel> {
    static LOWERED: OfLengths<LibraryKernel> = OfLengths::new();
    LOWERED.get(key_bytes, None, |key, _| Some(merge::splits_of(key)))
}

/// Returns the kernel that merges two sorted runs, with values of 4 or 8 bytes or without values. Each group
/// writes a tile. Its views are the keys of both runs, the two numbers for each tile, and the target; with
/// values, also the values of both runs and their target. Its values are as for [`split_kernel`]; with
/// values, also the bytes of a value.
pub(super) fn merge_kernel(key_bytes: u64, value_bytes: Option<u64>) -> Option<&'static LibraryKernel> {
    static LOWERED: OfLengths<LibraryKernel> = OfLengths::new();
    LOWERED.get(key_bytes, value_bytes, |key, value| Some(merge::of(key, value)))
}

/// Returns the kernel that copies a channel's elements of 1, 2, 4 or 8 bytes to their positions among all
/// elements. Each work-item copies an element. Its views are the elements and the target. Its values are the
/// six words of a [`StripedRange`](super::merge::StripedRange).
pub(super) fn gather_kernel(bytes: u64) -> Option<&'static LibraryKernel> {
    static LOWERED: OfLengths<LibraryKernel> = OfLengths::new();
    LOWERED.get(bytes, None, |of, _| Some(merge::gather_of(of)))
}

/// Returns the kernel of prefix sums of integers of 1, 2, 4 or 8 bytes, or of floats, with rows or
/// without. A tile has [`LOOK_BACK_TILE`] elements, and a group of [`LOOK_BACK_BLOCK`] work-items.
///
/// The kernel's views are the elements, and the states of tiles. Its values are the first element of the
/// channel (share of a device), the number of elements, the length of pages, the number of channels, the
/// channel, the start of rows, their length, and the flags.
pub(crate) fn scan_kernel(
    device: &Arc<dyn Device>,
    (bytes, is_float): (u64, bool),
    has_rows: bool,
) -> Option<&'static LibraryKernel> {
    static LOWERED: [OfLengths<LibraryKernel>; 8] = [const { OfLengths::new() }; 8];
    let waits = device.info().forward_progress;
    let kind = usize::from(is_float) + 2 * usize::from(has_rows) + 4 * usize::from(waits);
    LOWERED[kind].get(bytes, None, |of, _| {
        let number = match (is_float, of) {
            (false, _) => of,
            (true, Type::U32) => Type::F32,
            (true, _) => Type::F64,
        };
        Some(scan::of(number, waits, has_rows))
    })
}

/// Returns the kernels that find the greatest elements of 1, 2, 4 or 8 bytes of lines: for parts of lines,
/// which work-items or warps read, and for whole lines, as indices or as elements. See [`lines`].
pub(crate) fn extreme_kernels(
    bytes: u64,
    by_warps: bool,
    is_index: bool,
) -> Option<[&'static LibraryKernel; 2]> {
    static FIRSTS: [OfLengths<LibraryKernel>; 2] = [const { OfLengths::new() }; 2];
    static WHOLE: [OfLengths<LibraryKernel>; 2] = [const { OfLengths::new() }; 2];
    let firsts =
        FIRSTS[usize::from(by_warps)].get(bytes, None, |of, _| Some(lines::firsts_of(of, by_warps)))?;
    let whole = WHOLE[usize::from(is_index)].get(bytes, None, |of, _| Some(lines::whole_of(of, is_index)))?;
    Some([firsts, whole])
}

/// Returns the kernel of cumulative sums or products of numbers of a type, for lines along the last axis or
/// for others. See [`lines`].
pub(crate) fn accumulation_kernel(
    number: Type,
    is_product: bool,
    is_last: bool,
) -> Option<&'static LibraryKernel> {
    static LOWERED: [OfLengths<LibraryKernel>; 8] = [const { OfLengths::new() }; 8];
    let kind = usize::from(number.is_float()) + 2 * usize::from(is_product) + 4 * usize::from(is_last);
    let of = |_, _| Some(lines::accumulation_of(number, is_product, is_last));
    LOWERED[kind].get(number.bytes().into(), None, of)
}

/// Returns the kernel that lists the runs of equal elements of 1, 2, 4 or 8 bytes: the first position of
/// each run and the end of the last one, or one element of each run. A tile has [`LOOK_BACK_TILE`]
/// elements, and a group of [`LOOK_BACK_BLOCK`] work-items.
///
/// The kernel's views are the elements, the list, and the states of tiles. Its values are the number of
/// elements, the maximum length of the list, and flags. It publishes the number of runs.
pub(super) fn runs_kernel(
    device: &Arc<dyn Device>,
    bytes: u64,
    is_starts: bool,
) -> Option<&'static LibraryKernel> {
    static LOWERED: [OfLengths<LibraryKernel>; 4] = [const { OfLengths::new() }; 4];
    let waits = device.info().forward_progress;
    LOWERED[usize::from(is_starts) + 2 * usize::from(waits)].get(bytes, None, |of, _| {
        Some(if is_starts { runs::starts_of(of, waits) } else { runs::distinct_of(of, waits) })
    })
}
