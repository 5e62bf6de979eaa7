//! Division of an array's shape into pieces, and the threads that copy one piece at a time.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use crate::error::{Error, Result};
use crate::options::{FileOptions, FileProgress};

/// A shape divided into boxes (pieces) that are contiguous in row-major order.
#[derive(Clone, Debug)]
pub(crate) struct Pieces {
    shape: Vec<usize>,
    /// The axis that is cut. A piece has one index along earlier axes, and all along later axes.
    axis: usize,
    /// Number of indices of a piece along the cut axis.
    step: usize,
}

/// The part of an array that a thread copies at a time: a range of indices along each axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Range of indices along each axis.
    pub(crate) bounds: Vec<Range<usize>>,
    /// Row-major index of the piece's first element, if its elements are contiguous.
    pub(crate) start: Option<usize>,
}

/// Number of elements of an existing array with this shape, which cannot overflow.
pub(crate) fn element_count(shape: &[usize]) -> usize {
    // If an extent is zero, the product of the other extents may overflow, so do not compute it.
    if shape.contains(&0) { 0 } else { shape.iter().product() }
}

impl Piece {
    /// Number of elements of the piece.
    pub(crate) fn len(&self) -> usize {
        self.bounds.iter().map(ExactSizeIterator::len).product()
    }
}

impl Pieces {
    /// Divides a shape into pieces of at most `most` elements, at least one. The extent along the cut axis is
    /// a multiple of that axis's `steps`, if that fits.
    pub(crate) fn new(shape: &[usize], steps: &[usize], most: usize) -> Self {
        if shape.contains(&0) {
            return Self { shape: vec![0], axis: 0, step: 1 };
        }
        let (mut axis, mut inner) = (shape.len(), 1_usize);
        while axis > 0 && inner.saturating_mul(shape[axis - 1]) <= most {
            axis -= 1;
            inner *= shape[axis];
        }
        // A piece has all indices of the axes from `axis` on. The axis before `axis` is divided.
        let axis = axis.saturating_sub(1);
        let extent = shape.get(axis).copied().unwrap_or(1);
        let inner: usize = shape.iter().skip(axis + 1).product();
        let mut step = (most / inner).clamp(1, extent);
        if let Some(of) = steps.get(axis).filter(|of| step < extent && step > **of) {
            step -= step % (*of).max(1);
        }
        Self { shape: shape.to_vec(), axis, step }
    }

    pub(crate) fn count(&self) -> usize {
        let Some(extent) = self.shape.get(self.axis) else { return 1 };
        self.shape[..self.axis].iter().product::<usize>() * extent.div_ceil(self.step)
    }

    /// Number of elements of the longest piece.
    pub(crate) fn largest(&self) -> usize {
        if self.count() == 0 { 0 } else { self.piece(0).len() }
    }

    pub(crate) fn piece(&self, number: usize) -> Piece {
        let Some(extent) = self.shape.get(self.axis) else {
            return Piece { bounds: Vec::new(), start: Some(0) };
        };
        let along = extent.div_ceil(self.step);
        let first = number % along * self.step;
        let mut bounds: Vec<Range<usize>> = self.shape.iter().map(|extent| 0..*extent).collect();
        bounds[self.axis] = first..(first + self.step).min(*extent);
        let mut outer = number / along;
        for axis in (0..self.axis).rev() {
            let at = outer % self.shape[axis];
            outer /= self.shape[axis];
            bounds[axis] = at..at + 1;
        }
        let start = self.shape.iter().zip(&bounds).fold(0, |start, (extent, of)| start * extent + of.start);
        Piece { bounds, start: Some(start) }
    }
}

/// Calls `work` for the numbers below a count, on several threads with one buffer each. If the calling thread
/// [must work alone](vmarray::access::must_work_alone), it makes all calls. `work` returns the number of
/// copied bytes, and the calling thread reports progress to the program.
///
/// # Errors
/// The first error of `work`, after which no further work starts; [`Cancelled`](Error::Cancelled).
pub(crate) fn in_parallel<B>(
    count: usize,
    total_bytes: u64,
    path: &Path,
    options: &mut FileOptions<'_>,
    buffer: impl Fn() -> Result<B> + Sync,
    work: impl Fn(&mut B, usize) -> Result<u64> + Sync,
) -> Result<()> {
    let (mut done_bytes, total_bytes) = options.of_several.unwrap_or((0, total_bytes));
    let mut progress = |copied: Result<u64>| {
        done_bytes += copied?;
        let report = options.progress.as_mut();
        if report.is_some_and(|report| report(FileProgress { done_bytes, total_bytes }).is_break()) {
            return Err(Error::Cancelled { done_bytes, total_bytes });
        }
        Ok(())
    };
    if vmarray::access::must_work_alone() {
        let mut buffer = buffer()?;
        (0..count).try_for_each(|number| progress(work(&mut buffer, number)))?;
    } else {
        on_threads(count, path, options.threads, (buffer, work), progress)?;
    }
    if let Some((before, _)) = &mut options.of_several {
        *before = done_bytes;
    }
    Ok(())
}

/// Calls `work` on threads, each with its own buffer, and passes each result to `progress`.
fn on_threads<B>(
    count: usize,
    path: &Path,
    threads: usize,
    (buffer, work): (impl Fn() -> Result<B> + Sync, impl Fn(&mut B, usize) -> Result<u64> + Sync),
    mut progress: impl FnMut(Result<u64>) -> Result<()>,
) -> Result<()> {
    let (next, ended) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (sender, results) = mpsc::channel();
    let run = |sender: mpsc::Sender<Result<u64>>| {
        let mut buffer = match buffer() {
            Ok(buffer) => buffer,
            // Ignore a failed send: the receiver has stopped, because another thread reported an error first.
            Err(error) => return drop(sender.send(Err(error))),
        };
        while !ended.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count || sender.send(work(&mut buffer, number)).is_err() {
                break;
            }
        }
    };
    thread::scope(|scope| {
        // This guard ends the threads even if the program's callback panics.
        let _ends = Ends(&ended);
        for started in 0..threads.min(count) {
            let (run, sender) = (&run, sender.clone());
            let spawned = thread::Builder::new().spawn_scoped(scope, move || run(sender));
            match spawned {
                Ok(_) => {}
                // If no more threads can start, continue with the threads that are running.
                Err(_) if started > 0 => break,
                Err(cause) => return Err(Error::file("start a thread for", path)(cause)),
            }
        }
        drop(sender);
        results.into_iter().try_for_each(&mut progress)
    })
}

struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::ops::ControlFlow;

    proptest! {
        #[test]
        fn pieces_are_boxes_that_follow_one_another(
            shape in prop::collection::vec(0_usize..7, 0..5),
            steps in prop::collection::vec(1_usize..5, 5),
            most in 0_usize..100,
        ) {
            let pieces = Pieces::new(&shape, &steps, most);
            let mut at = 0;
            for number in 0..pieces.count() {
                let piece = pieces.piece(number);
                prop_assert_eq!(piece.start, Some(at));
                prop_assert!((1..=most.max(1)).contains(&piece.len()));
                // The piece is contiguous.
                let last = shape.iter().zip(&piece.bounds).fold(0, |at, (extent, of)| at * extent + of.end - 1);
                at += piece.len();
                prop_assert_eq!(last + 1, at);
            }
            prop_assert_eq!(at, shape.iter().product::<usize>());
        }
    }

    #[test]
    fn pieces_have_whole_pages() {
        assert_eq!(Pieces::new(&[1000], &[64], 200).piece(1).bounds[0], 192..384);
        assert_eq!(Pieces::new(&[100, 10], &[16, 4], 400).piece(2).bounds, [64..96, 0..10]);
        // The piece covers the whole shape, however long the pages are.
        assert_eq!(Pieces::new(&[100], &[64], 200).piece(0).bounds[0], 0..100);
    }

    #[test]
    fn the_first_error_and_the_program_end_the_work() {
        let path = Path::new("x");
        let run = |options: FileOptions<'_>, fails: usize| {
            let mut options = options.threads(3);
            let work = |_: &mut (), number| {
                if number == fails { Err(Error::malformed(path, "y")) } else { Ok(10) }
            };
            in_parallel(100, 1000, path, &mut options, || Ok(()), work)
        };
        assert!(run(FileOptions::new(), 100).is_ok());
        assert!(matches!(run(FileOptions::new(), 50), Err(Error::Malformed { .. })));
        let mut last = 0;
        let cancelled = run(
            FileOptions::new().progress(|progress| {
                assert_eq!(progress.done_bytes, last + 10);
                last = progress.done_bytes;
                if last == 500 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            }),
            100,
        );
        assert!(matches!(cancelled, Err(Error::Cancelled { done_bytes: 500, total_bytes: 1000 })));
    }
}
