//! Declarations of group operations (of a thread block), with which rustc checks the types in a kernel.
//! Nothing calls these functions: kernels with groups run only after their translation for devices, also on
//! the host.

/// Converts `len`, the extent of a group along an axis, to `u32`; larger values become `u32::MAX`.
pub const fn group_extent(len: usize) -> u32 {
    if len > u32::MAX as usize { u32::MAX } else { len as u32 }
}

/// Panics at compile time if a group with these extents has no items (GPU threads), or more than 1024.
pub const fn check_group(extents: &[usize]) {
    let len = product(extents);
    assert!(len > 0, "a group has no items: give it 1 to 1024, as in `group = 64`");
    assert!(
        len <= 1024,
        "a group has more than 1024 items: make it smaller, as in `group = 256` or `[16, 16]`"
    );
}

/// Panics at compile time if a group's number of items (GPU threads) is not a multiple of 32. Operations
/// across lanes (subgroups) require this.
pub const fn check_lanes(extents: &[usize]) {
    assert!(
        product(extents).is_multiple_of(32),
        "operations across lanes need groups of a multiple of 32 items, as in `group = 64`"
    );
}

/// Returns the number of items of a group, or `usize::MAX` if it overflows.
const fn product(extents: &[usize]) -> usize {
    let (mut len, mut axis) = (1_usize, 0);
    while axis < extents.len() {
        len = len.saturating_mul(extents[axis]);
        axis += 1;
    }
    len
}

/// Waits in a kernel until all items (GPU threads) of the group reach the barrier; panics on the host.
pub fn barrier() {
    never()
}

pub(crate) fn never<T>() -> T {
    panic!("a kernel with groups runs only when it is launched: do not call its function")
}

/// Operations across lanes: the 32 items (GPU threads) of a subgroup (warp).
pub mod lanes {
    use super::never;
    use crate::number::{KernelBits, KernelNumber, KernelScalar};

    macro_rules! operations {
        ($($Bound:ident: $($name:ident)*;)*) => { $($(
            pub fn $name<T: $Bound>(_: T) -> T {
                never()
            }
        )*)* };
    }
    operations! {
        KernelNumber: sum min max scan_sum scan_min scan_max;
        KernelBits: and or xor scan_and scan_or scan_xor;
    }

    pub fn shuffle<T: KernelScalar>(_: T, _: u32) -> T {
        never()
    }

    pub fn shuffle_xor<T: KernelScalar>(_: T, _: u32) -> T {
        never()
    }

    pub fn ballot(_: bool) -> u32 {
        never()
    }

    pub fn alike(_: u32, _: u32) -> u32 {
        never()
    }

    pub fn sync<T: KernelScalar>(_: T) -> T {
        never()
    }

    pub fn any(_: bool) -> bool {
        never()
    }

    pub fn all(_: bool) -> bool {
        never()
    }
}
