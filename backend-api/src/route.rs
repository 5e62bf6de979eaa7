//! Routes: the methods by which a device can copy data, such as a copy engine or a kernel; and the table that
//! selects the fastest route for each copy.

/// A route: the method by which a device executes the copies of one call of
/// [`submit`](crate::Device::submit), such as single driver calls or a kernel.
///
/// The fastest route depends on the GPU, its bus and its driver, and on the number and the length of the
/// copies.
///
/// ```
/// use backend_api::{Device, Request, Route};
/// let device = backend_host::HostDevice::new(1 << 20)?;
/// // A device in host RAM has only one method, so it lists no routes.
/// assert!(device.routes().is_empty());
/// // A device accepts any route, but uses another one if it does not support the route.
/// let ticket = device.submit(&device.create_queue()?, &Request::Copies(&[], Some(Route::Kernel)))?;
/// assert!(device.wait(ticket).is_ok());
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Route {
    /// The device calls the driver once for each copy.
    Single,
    /// The device calls the driver once for all copies, with a batch copy.
    Batch,
    /// One kernel executes all copies.
    Kernel,
}

/// A table that selects the [`Route`] (copy method) of a call of [`submit`](crate::Device::submit). The table
/// selects by the direction, the number and the mean length of the call's copies (*pieces*). A program can
/// measure the routes on its GPU, and replace the backend's default table.
///
/// The table has a row for each class of lengths (by powers of four) and a column for each class of numbers
/// (by powers of two). If an entry has no route, the device chooses, so an empty table changes nothing. For
/// calls with copies in both directions, or within the device, the device always chooses.
///
/// ```
/// use backend_api::{Route, Routing};
/// let mut routing = Routing::new();
/// assert!(routing.is_empty());
/// routing.set_download(16, 4096, Some(Route::Kernel));
/// assert_eq!(routing.download(20, 20 * 5000), Some(Route::Kernel), "of the same class");
/// assert_eq!(routing.download(20, 20 << 20), None);
/// assert_eq!(routing.upload(16, 16 * 4096), None, "directions are apart");
/// // The last classes have no upper bound, and no class contains a single piece.
/// let mut routing = Routing::only(Route::Batch);
/// assert_eq!((routing.upload(5000, 5000 << 24), routing.upload(1, 8192)), (Some(Route::Batch), None));
/// routing.set_upload(5000, 1 << 20, None);
/// assert_eq!(routing.upload(5000, 5000 << 24), None);
/// assert!(Routing::PIECES.is_sorted() && Routing::PIECE_BYTES.is_sorted());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Routing {
    uploads: Table,
    downloads: Table,
}

/// The route for each class of lengths (row) and each class of numbers of copies (column).
type Table = [[Option<Route>; Routing::PIECES.len()]; Routing::PIECE_BYTES.len()];

/// A table without routes.
const EMPTY: Table = [[None; Routing::PIECES.len()]; Routing::PIECE_BYTES.len()];

impl Routing {
    /// Minimum number of pieces (copies) in each class of the table. The table does not apply to one piece.
    pub const PIECES: [usize; 9] = [2, 4, 8, 16, 32, 64, 128, 256, 512];

    /// Typical length of the pieces of each class, in bytes. A class begins at half of its typical length.
    pub const PIECE_BYTES: [u64; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

    /// Creates an empty table, which leaves every choice to the device.
    #[must_use]
    pub const fn new() -> Self {
        Self { uploads: EMPTY, downloads: EMPTY }
    }

    /// Creates a table that selects `route` for all calls with at least two copies, all in one direction.
    #[must_use]
    pub fn only(route: Route) -> Self {
        let table = [[Some(route); Self::PIECES.len()]; Self::PIECE_BYTES.len()];
        Self { uploads: table, downloads: table }
    }

    /// Returns true if the table leaves every choice to the device.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::new()
    }

    /// Returns the route for a call with `pieces` copies to the device, of `bytes` bytes in total; `None`
    /// leaves the choice to the device.
    #[must_use]
    pub fn upload(&self, pieces: usize, bytes: u64) -> Option<Route> {
        look_up(&self.uploads, pieces, bytes)
    }

    /// Returns the route for a call with `pieces` copies from the device, of `bytes` bytes in total; `None`
    /// leaves the choice to the device.
    #[must_use]
    pub fn download(&self, pieces: usize, bytes: u64) -> Option<Route> {
        look_up(&self.downloads, pieces, bytes)
    }

    /// Sets the route of calls with about `pieces` copies to the device, of about `piece_bytes` bytes each.
    /// Has no effect for fewer than two pieces. `None` leaves the choice to the device.
    pub fn set_upload(&mut self, pieces: usize, piece_bytes: u64, route: Option<Route>) {
        set(&mut self.uploads, pieces, piece_bytes, route);
    }

    /// Sets the route of calls with about `pieces` copies from the device, of about `piece_bytes` bytes each.
    /// Has no effect for fewer than two pieces. `None` leaves the choice to the device.
    pub fn set_download(&mut self, pieces: usize, piece_bytes: u64, route: Option<Route>) {
        set(&mut self.downloads, pieces, piece_bytes, route);
    }
}

fn look_up(table: &Table, pieces: usize, bytes: u64) -> Option<Route> {
    let column = column(pieces)?;
    table[row(bytes / pieces as u64)][column]
}

fn set(table: &mut Table, pieces: usize, piece_bytes: u64, route: Option<Route>) {
    if let Some(column) = column(pieces) {
        table[row(piece_bytes)][column] = route;
    }
}

fn column(pieces: usize) -> Option<usize> {
    Routing::PIECES.iter().rposition(|&least| pieces >= least)
}

/// Returns the row for a mean length in bytes.
fn row(piece_bytes: u64) -> usize {
    Routing::PIECE_BYTES.iter().rposition(|&typical| piece_bytes >= typical / 2).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_and_length_has_one_class() {
        let mut routing = Routing::new();
        routing.set_download(0, 4096, Some(Route::Single));
        routing.set_download(1, 4096, Some(Route::Single));
        assert!(routing.is_empty());
        for (at, pieces) in Routing::PIECES.into_iter().enumerate() {
            assert_eq!(column(pieces), Some(at));
            assert_eq!(column(2 * pieces - 1), Some(at));
        }
        assert_eq!((column(0), column(1), column(usize::MAX)), (None, None, Some(8)));
        for (at, bytes) in Routing::PIECE_BYTES.into_iter().enumerate() {
            assert_eq!((row(bytes), row(bytes / 2), row(2 * bytes - 1)), (at, at, at));
        }
        assert_eq!((row(0), row(u64::MAX)), (0, 4));
    }
}
