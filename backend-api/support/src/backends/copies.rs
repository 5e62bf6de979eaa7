//! Merging of adjacent copies: one driver call for several copies costs less than a call for each.

use backend_api::Transfer;

/// Removes copies of 0 bytes. Merges consecutive copies if both their sources and their targets are adjacent.
pub fn joined<'a>(transfers: &[Transfer<'a>]) -> impl Iterator<Item = Transfer<'a>> {
    let mut rest = transfers.iter().filter(|transfer| transfer.bytes() > 0).peekable();
    std::iter::from_fn(move || {
        let mut current = *rest.next()?;
        while let Some(longer) = rest.peek().and_then(|next| joint(&current, next)) {
            current = longer;
            rest.next();
        }
        Some(current)
    })
}

/// Merges two copies if the second continues both the source and the target of the first. Returns `None` if
/// not, or if the merged copy would overlap itself within a buffer.
fn joint<'a>(first: &Transfer<'a>, next: &Transfer<'a>) -> Option<Transfer<'a>> {
    let bytes = first.bytes().checked_add(next.bytes())?;
    let of = |transfer: &Transfer<'a>, skip: u64, bytes: u64| match *transfer {
        Transfer::Upload { from, to, .. } => {
            Transfer::Upload { from: from.plus(skip), to: to.plus(skip), bytes }
        }
        Transfer::Download { from, to, .. } => {
            Transfer::Download { from: from.plus(skip), to: to.plus(skip), bytes }
        }
        Transfer::Internal { from, to, .. } => {
            Transfer::Internal { from: from.plus(skip), to: to.plus(skip), bytes }
        }
    };
    let overlaps = match *first {
        Transfer::Internal { from, to, .. } => {
            from.buffer() == to.buffer() && from.offset().abs_diff(to.offset()) < bytes
        }
        _ => false,
    };
    (of(first, first.bytes(), next.bytes()) == *next && !overlaps).then(|| of(first, 0, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use backend_api::{BufferHandle, HostAllocation, HostMemory};

    #[test]
    fn neighbours_on_both_sides_are_joined_and_others_are_not() {
        // The test uses names alone. SAFETY: the allocation has no bytes.
        let host = unsafe { HostAllocation::new(std::ptr::NonNull::dangling(), 0, HostMemory::Pageable) };
        let [buffer, other] = [(); 2].map(|()| BufferHandle::unique());
        let up = |buffer, from, to, bytes| Transfer::Upload {
            from: host.at(from),
            to: BufferHandle::at(buffer, to),
            bytes,
        };
        let within = |from, to, bytes| Transfer::Internal { from: buffer.at(from), to: buffer.at(to), bytes };
        let download = Transfer::Download { from: buffer.at(40), to: host.at(40), bytes: 10 };
        let transfers = [
            up(&buffer, 0, 100, 10),
            up(&buffer, 10, 110, 10),
            up(&buffer, 5, 5, 0),
            up(&buffer, 20, 120, 5),
            up(&buffer, 25, 130, 5),
            up(&other, 30, 135, 10),
            download,
            within(0, 20, 10),
            within(10, 30, 10),
            within(20, 40, 10),
        ];
        let expected = [
            up(&buffer, 0, 100, 25),
            up(&buffer, 25, 130, 5),
            up(&other, 30, 135, 10),
            download,
            within(0, 20, 20),
            within(20, 40, 10),
        ];
        assert_eq!(joined(&transfers).collect::<Vec<_>>(), expected);
        assert_eq!(joined(&transfers[2..3]).count(), 0);
    }
}
