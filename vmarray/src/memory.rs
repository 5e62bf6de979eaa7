//! Memory of the program's own, refused by an error: ranges of an array may be longer than RAM.

use bytemuck::Zeroable;

use crate::error::{ErrorKind, Result};

/// Zeroed elements; the system gives untouched pages where it can, so that nothing is written for them.
///
/// Fails if the system refuses. One that promises more than it has may still end the program later.
pub(crate) fn zeroed_vec<T: Zeroable>(len: usize) -> Result<Vec<T>> {
    bytemuck::allocation::try_zeroed_vec(len)
        .map_err(|()| ErrorKind::NoMemory { bytes: len.saturating_mul(size_of::<T>()) }.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_or_refused() {
        assert_eq!(zeroed_vec::<u64>(3).unwrap(), [0; 3]);
        assert!(zeroed_vec::<u64>(0).unwrap().is_empty());
        let error = zeroed_vec::<u64>(1 << 59).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::NoMemory { bytes: 1 << 62 });
        let error = zeroed_vec::<u64>(usize::MAX).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::NoMemory { bytes: usize::MAX });
    }
}
