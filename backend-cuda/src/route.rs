//! The route of one call's copies (single copies, a batch of the driver, or a kernel), chosen by their
//! number, size and direction.
//!
//! The costs differ by route. A single copy costs about 1.5 µs of the processor and about as much of the copy
//! engine, at any size. A batch costs a fraction of that per piece, up to the length of the driver's buffers.
//! A kernel costs one launch, and some 3 µs more until it is done. It then moves pieces of any size at the
//! speed of the bus, in both directions at once.
//!
//! If a program has [measured](backend_api::Device::set_routing) the GPU, its table selects the route. For
//! sizes that this table lacks, the limits in this module apply. They were measured on one H200 (PCIe Gen5,
//! driver 580). Each value is the speed of one call including the wait, in GB/s:
//!
//! | pieces × bytes | download: single, batch, kernel | upload: single, batch, kernel | half and half: single, batch, kernel |
//! |---|---|---|---|
//! | 2 × 4 KiB | 1.1, **1.3**, 0.9 | 0.9, **1.1**, 0.8 | 0.5, 0.5, **0.8** |
//! | 8 × 4 KiB | 1.8, **3.8**, 3.4 | 1.3, **3.2**, 3.0 | 0.7, 0.5, **3.1** |
//! | 16 × 4 KiB | 2.0, 5.6, **6.2** | 1.4, 2.1, **5.6** | 0.6, 0.8, **5.9** |
//! | 1024 × 4 KiB | 2.0, 10.7, **35.7** | 1.5, 3.5, **34.5** | 1.0, 0.8, **43.2** |
//! | 8 × 64 KiB | 19.5, **29.9**, 27.7 | 15.4, **27.8**, 25.4 | 8.3, 8.3, **30.2** |
//! | 16 × 64 KiB | 21.5, 35.4, **36.3** | 16.5, **33.9**, 33.8 | 9.2, 9.1, **38.6** |
//! | 256 × 64 KiB | 16.9, 40.5, **49.4** | 16.8, 40.5, **47.9** | 9.1, 8.9, **71.7** |
//! | 16 × 256 KiB | 36.7, **48.1**, 47.1 | 34.1, **47.7**, 45.5 | 24.6, 25.9, **57.7** |
//! | 256 × 256 KiB | 33.7, 45.5, **46.2** | 32.1, 45.9, **47.6** | 23.0, 23.6, **65.7** |
//! | 2 × 1 MiB | 45.2, **47.3**, 42.5 | 44.1, **46.3**, 41.0 | 41.0, 41.0, **45.5** |
//! | 256 × 1 MiB | 47.3, **51.7**, 50.3 | 46.6, **51.7**, 48.5 | 39.4, 39.4, **75.7** |
//!
//! The speed of a batch of few short uploads varies between runs. In another run on a GPU of the same model
//! (2026-11-21) 4 × 4 KiB reached 1.3 GB/s by batch and 1.6 by kernel, 8 × 4 KiB 1.8 and 2.8. 4 × 16 KiB
//! reached 3.7 and 5.3, 8 × 16 KiB 4.4 and 9.3, but 8 × 64 KiB 26.0 and 22.9. Few short uploads therefore use
//! the kernel, which loses little at worst.

use backend_api::{Route, Routing};

#[cfg(test)]
mod calls;

/// Up to this number of pieces a batch is faster than a kernel, except for uploads of short pieces.
const BATCH_PIECES: usize = 8;
/// If a call uploads more than two pieces of a shorter mean length (in bytes), a kernel copies them.
const SHORT_BYTES: u64 = 32 << 10;
/// The mean length in bytes from which the copy engine copies any number of pieces.
const BATCH_BYTES: u64 = 256 << 10;
/// If the driver has no batch, calls with up to this number of pieces use single copies.
const SINGLE_PIECES: usize = 2;
/// If the driver has no batch, pieces of at least this mean length in bytes are single copies.
const SINGLE_BYTES: u64 = 1 << 20;

/// The direction of a call's pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PieceDirection {
    Upload,
    Download,
    /// All copies are within the GPU.
    Internal,
    /// Copies go in different directions. Each change of direction costs the copy engine a wait.
    Mixed,
}

/// Number, size and direction of the copies of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallPieces {
    pub(crate) pieces: usize,
    pub(crate) bytes: u64,
    pub(crate) direction: PieceDirection,
}

/// The routes that are possible for the copies of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Possible {
    pub(crate) batch: bool,
    pub(crate) kernel: bool,
}

/// The routes that the caller or the table requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RoutePreferences {
    /// One route for all pieces; if it is impossible, they become single copies.
    pub(crate) forced: Option<Route>,
    /// The measured routes for the GPU.
    pub(crate) routing: Routing,
}

/// Chooses the route for the copies of a call.
pub(crate) fn choose(load: CallPieces, possible: Possible, preferences: &RoutePreferences) -> Route {
    let is_possible = |route: &Route| match route {
        Route::Kernel => possible.kernel,
        Route::Batch => possible.batch,
        _ => true,
    };
    if let Some(forced) = preferences.forced {
        return Some(forced).filter(is_possible).unwrap_or(Route::Single);
    }
    let measured = match load.direction {
        PieceDirection::Upload => preferences.routing.upload(load.pieces, load.bytes),
        PieceDirection::Download => preferences.routing.download(load.pieces, load.bytes),
        PieceDirection::Internal | PieceDirection::Mixed => None,
    };
    measured.filter(is_possible).unwrap_or_else(|| best(load, possible))
}

fn best(load: CallPieces, possible: Possible) -> Route {
    let average = load.bytes / (load.pieces as u64).max(1);
    let (for_the_engine, without_a_kernel) = match load.direction {
        _ if load.pieces <= 1 => return Route::Single,
        PieceDirection::Mixed => (false, Route::Single),
        PieceDirection::Internal if load.pieces <= SINGLE_PIECES || average >= BATCH_BYTES => {
            return Route::Single;
        }
        PieceDirection::Internal => (false, Route::Single),
        PieceDirection::Upload if possible.batch && load.pieces > 2 && average < SHORT_BYTES => {
            (false, Route::Batch)
        }
        PieceDirection::Upload | PieceDirection::Download if possible.batch => {
            (load.pieces <= BATCH_PIECES || average >= BATCH_BYTES, Route::Batch)
        }
        PieceDirection::Upload | PieceDirection::Download => {
            (load.pieces <= SINGLE_PIECES || average >= SINGLE_BYTES, Route::Single)
        }
    };
    if possible.kernel && !for_the_engine { Route::Kernel } else { without_a_kernel }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Possible = Possible { batch: true, kernel: true };
    const OWN: RoutePreferences = RoutePreferences { forced: None, routing: NOTHING };
    const NOTHING: Routing = Routing::new();
    fn load(pieces: usize, each: u64, direction: PieceDirection) -> CallPieces {
        CallPieces { pieces, bytes: pieces as u64 * each, direction }
    }

    fn forced(route: Route) -> RoutePreferences {
        RoutePreferences { forced: Some(route), routing: NOTHING }
    }

    #[test]
    fn number_size_and_direction_decide() {
        use PieceDirection::{Download, Internal, Mixed, Upload};
        const NO_KERNEL: Possible = Possible { kernel: false, ..ALL };
        for (pieces, each, direction, possible, expected) in [
            // In one direction, copy few or large pieces as a batch, and many small pieces by a kernel.
            (1, 4096, Upload, ALL, Route::Single),
            (1, 4096, Download, ALL, Route::Single),
            (2, 4096, Upload, ALL, Route::Batch),
            (2, 4096, Download, ALL, Route::Batch),
            (8, 64 << 10, Upload, ALL, Route::Batch),
            (8, 64 << 10, Download, ALL, Route::Batch),
            (9, 4096, Upload, ALL, Route::Kernel),
            (9, 4096, Download, ALL, Route::Kernel),
            (256, 64 << 10, Upload, ALL, Route::Kernel),
            (256, 64 << 10, Download, ALL, Route::Kernel),
            (256, 1 << 20, Upload, ALL, Route::Batch),
            (256, 1 << 20, Download, ALL, Route::Batch),
            // For a few short pieces, downloads use a batch and uploads use a kernel.
            (3, 4096, Download, ALL, Route::Batch),
            (3, 4096, Upload, ALL, Route::Kernel),
            (3, 4096, Upload, NO_KERNEL, Route::Batch),
            (8, 16 << 10, Download, ALL, Route::Batch),
            (8, 16 << 10, Upload, ALL, Route::Kernel),
            (8, 16 << 10, Upload, NO_KERNEL, Route::Batch),
            // A kernel copies pieces in both directions.
            (2, 4096, Mixed, ALL, Route::Kernel),
            (256, 4096, Mixed, ALL, Route::Kernel),
            (2, 1 << 20, Mixed, ALL, Route::Kernel),
            (256, 1 << 20, Mixed, ALL, Route::Kernel),
            // Within the GPU a kernel is worth its cost only for many small pieces.
            (2, 100, Internal, ALL, Route::Single),
            (100, 4096, Internal, ALL, Route::Kernel),
            (100, 1 << 20, Internal, ALL, Route::Single),
        ] {
            let load = load(pieces, each, direction);
            assert_eq!(choose(load, possible, &OWN), expected, "{load:?} {possible:?}");
        }
    }

    #[test]
    fn impossible_routes_are_neither_chosen_nor_forced() {
        let none = Possible { batch: false, kernel: false };
        let many = load(256, 4096, PieceDirection::Download);
        for route in [Route::Batch, Route::Kernel, Route::Single] {
            for direction in [
                PieceDirection::Upload,
                PieceDirection::Download,
                PieceDirection::Internal,
                PieceDirection::Mixed,
            ] {
                let load = CallPieces { direction, ..many };
                assert_eq!(choose(load, none, &OWN), Route::Single);
                assert_eq!(choose(load, none, &forced(route)), Route::Single);
                assert_eq!(
                    choose(load, none, &RoutePreferences { routing: Routing::only(route), ..OWN }),
                    Route::Single
                );
            }
        }
        assert_eq!(choose(many, Possible { kernel: false, ..ALL }, &OWN), Route::Batch);
        assert_eq!(choose(many, Possible { batch: false, ..ALL }, &OWN), Route::Kernel);
        assert_eq!(choose(load(1, 1, PieceDirection::Upload), ALL, &forced(Route::Kernel)), Route::Kernel);
    }

    #[test]
    fn measured_routes_override_assumed_and_yield_to_forced() {
        let mut routing = Routing::new();
        routing.set_download(64, 4096, Some(Route::Batch));
        let preferences = RoutePreferences { forced: None, routing };
        let download = load(100, 4096, PieceDirection::Download);
        assert_eq!(choose(download, ALL, &OWN), Route::Kernel);
        assert_eq!(choose(download, ALL, &preferences), Route::Batch);
        assert_eq!(
            choose(load(200, 4096, PieceDirection::Download), ALL, &preferences),
            Route::Kernel,
            "another class"
        );
        assert_eq!(
            choose(CallPieces { direction: PieceDirection::Upload, ..download }, ALL, &preferences),
            Route::Kernel
        );
        let both = RoutePreferences { forced: Some(Route::Single), routing };
        assert_eq!(choose(download, ALL, &both), Route::Single);
        // If the table's route is impossible, the default applies instead of the slowest route.
        assert_eq!(choose(download, Possible { batch: false, ..ALL }, &preferences), Route::Kernel);
        let everywhere = RoutePreferences { forced: None, routing: Routing::only(Route::Single) };
        assert_eq!(
            choose(CallPieces { direction: PieceDirection::Mixed, ..download }, ALL, &everywhere),
            Route::Kernel
        );
        assert_eq!(
            choose(CallPieces { direction: PieceDirection::Internal, ..download }, ALL, &everywhere),
            Route::Kernel
        );
    }
}
