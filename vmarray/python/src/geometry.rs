//! Layout of a view's items in the stored elements: an offset, a shape and strides, in bytes, as in NumPy.

/// Offset, shape and strides of an array's items within a sequence of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Offset of the first item, in bytes.
    pub offset: usize,
    /// Number of items along each axis.
    pub shape: Vec<usize>,
    /// Distance from one item to the next along each axis, in bytes.
    pub strides: Vec<isize>,
    /// Size of each item, in bytes.
    pub itemsize: usize,
}

/// The rows of a view whose rows consist of contiguous elements, at equal distances.
pub struct Rows {
    pub extent: usize,
    /// Index of the first element of the first row.
    pub first: usize,
    /// Distance from one row to the next, in elements.
    pub step: isize,
    /// Number of elements in each row.
    pub elements: usize,
}

/// Number of rows and columns of a tile.
const TILE: usize = 64;

/// Returns the first row and the first column of each tile of a matrix.
fn tiles(rows: usize, columns: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rows).step_by(TILE).flat_map(move |row| (0..columns).step_by(TILE).map(move |column| (row, column)))
}

/// Copies items at equal distances of `step` bytes; the first one begins at byte `first`.
fn line_of<const N: usize>(from: &[u8], first: isize, step: isize, line: &mut [[u8; N]]) {
    let mut at = first;
    for item in line {
        *item = *from[at as usize..].first_chunk().expect("the items are within the bytes");
        at += step;
    }
}

impl Geometry {
    /// Returns the rows along the first axis; `None` unless they have contiguous elements of `unit` bytes.
    pub fn rows(&self, unit: usize) -> Option<Rows> {
        let (&extent, rest) = self.shape.split_first()?;
        let (step, strides) = (self.strides[0], self.strides[1..].to_vec());
        let row = Self { offset: 0, shape: rest.to_vec(), strides, itemsize: self.itemsize };
        let is_whole = self.offset.is_multiple_of(unit)
            && step.unsigned_abs().is_multiple_of(unit)
            && self.itemsize.is_multiple_of(unit);
        (is_whole && row.count() > 0 && row.in_a_row(self.itemsize)).then(|| Rows {
            extent,
            first: self.offset / unit,
            step: step / unit as isize,
            elements: row.bytes() / unit,
        })
    }

    /// Creates the geometry of contiguous items in C order.
    pub fn contiguous(shape: &[usize], itemsize: usize) -> Self {
        let mut strides = vec![0; shape.len()];
        let mut next = itemsize as isize;
        for (stride, extent) in strides.iter_mut().zip(shape).rev() {
            *stride = next;
            next *= *extent as isize;
        }
        Self { offset: 0, shape: shape.to_vec(), strides, itemsize }
    }

    /// Number of items.
    pub fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Size of all items, in bytes.
    pub fn bytes(&self) -> usize {
        self.count() * self.itemsize
    }

    /// Returns the geometry of the same items, broadcast to a shape as in NumPy. The caller has checked that
    /// the broadcast is possible.
    pub fn broadcast(&self, shape: &[usize]) -> Self {
        let added = shape.len() - self.shape.len();
        let strides = shape.iter().enumerate().map(|(axis, extent)| match axis.checked_sub(added) {
            Some(own) if self.shape[own] == *extent => self.strides[own],
            _ => 0,
        });
        Self { strides: strides.collect(), shape: shape.to_vec(), ..*self }
    }

    /// Returns the same items with few axes: drops axes of length 1, and merges contiguous axes.
    fn merged(&self) -> Self {
        let (mut shape, mut strides): (Vec<usize>, Vec<isize>) = (Vec::new(), Vec::new());
        for (&extent, &stride) in self.shape.iter().zip(&self.strides).filter(|(extent, _)| **extent != 1) {
            match (shape.last_mut(), strides.last_mut()) {
                (Some(last), Some(outer)) if *outer == stride * extent as isize => {
                    *last *= extent;
                    *outer = stride;
                }
                _ => {
                    shape.push(extent);
                    strides.push(stride);
                }
            }
        }
        Self { shape, strides, ..*self }
    }

    /// True if each item follows the previous one, in C order, at a distance of `stride` bytes.
    pub fn in_a_row(&self, stride: usize) -> bool {
        let merged = self.merged();
        merged.count() <= 1 || merged.strides[..] == [stride as isize]
    }

    /// The offset of the first byte that an item uses, and the end of the last item, in bytes.
    pub fn span(&self) -> (usize, usize) {
        let (mut first, mut last) = (self.offset as isize, self.offset as isize);
        for (&extent, &stride) in self.shape.iter().zip(&self.strides) {
            let far = stride * (extent.max(1) as isize - 1);
            if far < 0 { first += far } else { last += far }
        }
        (first as usize, last as usize + self.itemsize)
    }

    /// Merges contiguous items into runs: returns the length of each run in bytes, and the geometry of the
    /// runs' starts.
    pub fn runs(&self) -> (usize, Self) {
        let mut merged = self.merged();
        let mut len = self.itemsize;
        if merged.strides.last() == Some(&(self.itemsize as isize)) {
            len *= merged.shape.pop().unwrap_or(1);
            merged.strides.pop();
        }
        merged.itemsize = len;
        (len, merged)
    }

    /// Calls a function with the byte offset of each item, in C order; stops at the first error.
    pub fn each<E>(&self, mut visit: impl FnMut(usize) -> Result<(), E>) -> Result<(), E> {
        if self.count() == 0 {
            return Ok(());
        }
        let (mut at, mut index) = (self.offset as isize, vec![0; self.shape.len()]);
        loop {
            visit(at as usize)?;
            let mut axis = self.shape.len();
            loop {
                let Some(outer) = axis.checked_sub(1) else { return Ok(()) };
                axis = outer;
                index[axis] += 1;
                at += self.strides[axis];
                if index[axis] < self.shape[axis] {
                    break;
                }
                at -= self.strides[axis] * self.shape[axis] as isize;
                index[axis] = 0;
            }
        }
    }

    /// Returns the same items in the order in which they are stored, and for each of its axes the axis of
    /// `self`.
    fn stored(&self) -> (Self, Vec<usize>) {
        let mut axes: Vec<usize> = (0..self.shape.len()).filter(|axis| self.shape[*axis] != 1).collect();
        axes.sort_by_key(|axis| std::cmp::Reverse(self.strides[*axis].unsigned_abs()));
        let shape: Vec<usize> = axes.iter().map(|axis| self.shape[*axis]).collect();
        let strides = axes.iter().map(|axis| self.strides[*axis].abs()).collect();
        (Self { offset: self.span().0, shape, strides, itemsize: self.itemsize }, axes)
    }

    /// Returns runs of contiguous items in the order in which they are stored, as [`runs`](Self::runs)
    /// does, and the geometry of the items of `self` in the concatenated runs. There is at least one item.
    pub fn stored_runs(&self) -> ((usize, Self), Self) {
        let (stored, axes) = self.stored();
        let packed = Self::contiguous(&stored.shape, self.itemsize);
        let (mut strides, mut offset) = (vec![0; self.shape.len()], 0);
        for (&axis, &stride) in axes.iter().zip(&packed.strides) {
            strides[axis] = if self.strides[axis] < 0 { -stride } else { stride };
            if self.strides[axis] < 0 {
                offset += stride as usize * (self.shape[axis] - 1);
            }
        }
        (stored.runs(), Self { offset, shape: self.shape.clone(), strides, itemsize: self.itemsize })
    }

    /// Divides the items into blocks of at most `bytes` bytes, or of one item, in C order.
    pub fn blocks(&self, bytes: usize) -> Vec<Self> {
        match self.halves() {
            Some(halves) if self.bytes() > bytes => {
                halves.iter().flat_map(|half| half.blocks(bytes)).collect()
            }
            _ => vec![self.clone()],
        }
    }

    /// Copies the items from bytes with this geometry, in C order, to memory of the same size.
    pub fn pick(&self, from: &[u8], into: &mut [u8]) {
        match self.itemsize {
            1 => self.pick_items::<1>(from, into),
            2 => self.pick_items::<2>(from, into),
            4 => self.pick_items::<4>(from, into),
            8 => self.pick_items::<8>(from, into),
            16 => self.pick_items::<16>(from, into),
            size => {
                let mut items = into.chunks_exact_mut(size);
                let Ok::<(), ()>(()) = self.each(|start| {
                    items.next().unwrap_or_default().copy_from_slice(&from[start..start + size]);
                    Ok(())
                }) else {
                    unreachable!("nothing fails")
                };
            }
        }
    }

    /// Copies the items as [`pick`](Self::pick) does, if an item has `N` bytes: tile by tile of the last
    /// two axes.
    fn pick_items<const N: usize>(&self, from: &[u8], into: &mut [u8]) {
        let merged = self.merged();
        let axes = merged.shape.len();
        let (columns, step) = match axes {
            0 => (1, 0),
            _ => (merged.shape[axes - 1], merged.strides[axes - 1]),
        };
        let (rows, row_step) = match axes {
            0 | 1 => (1, 0),
            _ => (merged.shape[axes - 2], merged.strides[axes - 2]),
        };
        let outer = axes.saturating_sub(2);
        let (shape, strides) = (merged.shape[..outer].to_vec(), merged.strides[..outer].to_vec());
        let mut matrices = into.as_chunks_mut::<N>().0.chunks_exact_mut((rows * columns).max(1));
        let Ok::<(), ()>(()) = (Self { shape, strides, ..merged }).each(|start| {
            let matrix = matrices.next().unwrap_or_default();
            for (row, column) in tiles(rows, columns) {
                for at in row..rows.min(row + TILE) {
                    let first = start as isize + at as isize * row_step + column as isize * step;
                    let line = &mut matrix[at * columns..(at + 1) * columns];
                    let line = &mut line[column..columns.min(column + TILE)];
                    line_of(from, first, step, line);
                }
            }
            Ok(())
        }) else {
            unreachable!("nothing fails")
        };
    }

    /// Divides the items into two halves, in C order. `None` for a single item.
    pub fn halves(&self) -> Option<[Self; 2]> {
        let axis = self.shape.iter().position(|extent| *extent > 1)?;
        let (mut first, mut second) = (self.clone(), self.clone());
        first.shape[axis] /= 2;
        second.shape[axis] -= first.shape[axis];
        second.offset = (self.offset as isize + self.strides[axis] * first.shape[axis] as isize) as usize;
        Some([first, second])
    }
}
