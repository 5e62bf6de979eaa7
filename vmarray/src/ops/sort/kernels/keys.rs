//! Key types in sort kernels: unsigned integers, and the conversion of keys to bits in sort order.

use vmarray_kernel::{KernelInteger, kernel};

/// Lowers a kernel for the unsigned integer with the length of a key: `by_key!(key, K => kernel<K>)`.
macro_rules! by_key {
    ($key:expr, $K:ident => $kernel:ty) => {{
        use backend_api::kernel::Type;
        use $crate::ops::executor::LibraryKernel;
        match $key {
            Type::U8 => {
                type $K = u8;
                LibraryKernel::of::<$kernel>()
            }
            Type::U16 => {
                type $K = u16;
                LibraryKernel::of::<$kernel>()
            }
            Type::U32 => {
                type $K = u32;
                LibraryKernel::of::<$kernel>()
            }
            _ => {
                type $K = u64;
                LibraryKernel::of::<$kernel>()
            }
        }
    }};
}
pub(super) use by_key;

/// Kernel function: converts a key to an unsigned number with the order of the keys. `order` are the two
/// words of a [`KeyOrder`](crate::ops::sort::KeyOrder).
#[kernel(crate = vmarray_kernel)]
pub(super) fn in_order<K: KernelInteger>(key: K, order: (K, K)) -> K {
    let is_negative = K::ZERO - (key >> (K::BITS - 1));
    key ^ order.0 ^ (is_negative & order.1)
}

/// Kernel function: converts an unsigned number back to its key, as the inverse of [`in_order`].
#[kernel(crate = vmarray_kernel)]
pub(super) fn as_it_was<K: KernelInteger>(number: K, order: (K, K)) -> K {
    in_order(number ^ order.0, (K::ZERO, order.1))
}
