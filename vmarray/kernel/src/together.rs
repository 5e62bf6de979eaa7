//! What items of a group do together, as rustc types it. Groups run in their lowered form, on the host too:
//! these functions are never called.

/// The extent of a group along an axis. What is too long for one is refused by the verifier.
pub const fn group_extent(len: usize) -> u32 {
    if len > u32::MAX as usize { u32::MAX } else { len as u32 }
}

/// Where items of a group meet.
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
