//! Typed declarations of group operations. Groups run in their lowered form, also on the host, so these
//! functions are never called.

/// The extent of a group along an axis. The verifier refuses lengths that exceed the limit.
pub const fn group_extent(len: usize) -> u32 {
    if len > u32::MAX as usize { u32::MAX } else { len as u32 }
}

/// Barrier of a group.
pub fn barrier() {
    never()
}

pub(crate) fn never<T>() -> T {
    panic!("items of a group meet when the kernel is launched, not when its function is called")
}

/// Operations across lanes.
pub mod lanes {
    use super::never;
    use crate::number::{Bits, Number, Scalar};

    macro_rules! operations {
        ($($Bound:ident: $($name:ident)*;)*) => { $($(
            pub fn $name<T: $Bound>(_: T) -> T {
                never()
            }
        )*)* };
    }
    operations! {
        Number: sum min max scan_sum scan_min scan_max;
        Bits: and or xor scan_and scan_or scan_xor;
    }

    pub fn shuffle<T: Scalar>(_: T, _: u32) -> T {
        never()
    }

    pub fn shuffle_xor<T: Scalar>(_: T, _: u32) -> T {
        never()
    }

    pub fn ballot(_: bool) -> u32 {
        never()
    }

    pub fn any(_: bool) -> bool {
        never()
    }

    pub fn all(_: bool) -> bool {
        never()
    }
}
