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
