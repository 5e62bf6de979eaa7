//! Launches whose work-groups are tiles of a multidimensional result. The work-items (GPU threads) write
//! elements to scratch memory of their device in the order of tiles. A second kernel moves the elements to
//! their pages.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use backend_api::expr::Geometry;
use backend_api::kernel::{self, Report};
use backend_api::{Device, HostSpan, Launch, LaunchView, Request, Ticket};
use parking_lot::Mutex;
use vmarray_kernel::launch::{DomainAxis, LaunchVariant, lower_placing};
use vmarray_kernel::{Layout, ScalarSource, StencilPart};

use super::broadcast::copy_around;
use super::index_domain::IndexDomainStore;
use super::kernel::PreparedKernel;
use super::launching::Launching;
use super::tiles::{TiledGroups, TiledResult};
use crate::base::error::{Error, ErrorKind, Result};
use crate::ops::executor::{Change, Examination, OperandStore as _, Run, WorkQueue, WriteOutcome};
use crate::ops::expr::refused;
use crate::ops::view::{SignedBox, StoredBox};

impl Launching<'_> {
    /// Runs all work-items (GPU threads), band by band (rows of tiles), and moves their elements to the
    /// results.
    pub fn run_tiles(
        &mut self,
        tiles: &TiledGroups,
        results: &[TiledResult<'_>],
        numbers: &IndexDomainStore<'_>,
        is_short: bool,
    ) -> Result<()> {
        let kernels = results.iter().map(|result| placing(result, tiles, is_short));
        let kernels = kernels.collect::<Result<Vec<_>>>()?;
        let (count, mut outcome) = (tiles.band_tiles(results), WriteOutcome::default());
        for first in (0..tiles.tiles(0)).step_by(count) {
            let count = count.min(tiles.tiles(0) - first);
            let band = tiles.band(first, count, &results[0].stored);
            let plan = &mut self.plan;
            for (param, source) in plan.params.iter_mut().zip(&plan.kernel.lowered.scalars) {
                if let ScalarSource::Axis { axis, part } = source {
                    *param = band.axes[*axis].scalar(*part, is_short);
                }
            }
            self.band = Some(band);
            let items = 0..if self.facts.is_some() { tiles.len() } else { tiles.items(count) };
            let mut is_changed = false;
            match self.run_band(&items, numbers, results, &kernels, &mut is_changed) {
                Ok(()) if self.facts.is_some() => return Ok(()),
                Ok(()) => outcome.written.push(self.band_range(&results[0].stored)),
                Err(error) => {
                    if is_changed {
                        outcome.unspecified.push(self.band_range(&results[0].stored));
                    }
                    outcome.failure = Some(match error.kind() {
                        ErrorKind::Interrupted { cause, .. } => cause.clone().into(),
                        _ => error,
                    });
                    break;
                }
            }
        }
        outcome.into_result()
    }

    /// Runs one band (rows of tiles). Sets `is_changed` before elements of results may change.
    fn run_band(
        &self,
        items: &Range<usize>,
        numbers: &IndexDomainStore<'_>,
        results: &[TiledResult<'_>],
        kernels: &[(Arc<PreparedKernel>, LaunchVariant)],
        is_changed: &mut bool,
    ) -> Result<()> {
        let Some(band) = &self.band else { return Ok(()) };
        let place = |positions: &Range<usize>| positions.start as isize..positions.end as isize;
        let beside = band.axes[1..].iter().map(|axis| place(&(0..axis.extent)));
        let bounds: SignedBox = std::iter::once(place(&band.rows)).chain(beside).collect();
        copy_around(&mut self.devices.write(), &self.spread, &bounds)?;
        let examined = numbers.examine(&[], items, &Examination(self));
        self.in_time().and(examined)?;
        if self.facts.is_some() {
            return Ok(());
        }
        for (result, (kernel, form)) in results.iter().zip(kernels) {
            self.exchange(result, numbers, items)?;
            let range = self.band_range(&result.stored);
            let done = result.target.change(&[], &range, &Placing { of: self, result, kernel, form });
            let is_refused = |error: &Error| !matches!(error.kind(), ErrorKind::Interrupted { .. });
            *is_changed |= !done.as_ref().is_err_and(is_refused);
            done?;
        }
        Ok(())
    }

    /// Copies the computed elements of each device to all other devices.
    fn exchange(
        &self,
        result: &TiledResult<'_>,
        numbers: &IndexDomainStore<'_>,
        items: &Range<usize>,
    ) -> Result<()> {
        let (devices, stride) = (self.devices.read(), result.target.stride());
        if devices.len() < 2 {
            return Ok(());
        }
        for (number, part) in numbers.parts(items).enumerate() {
            let bytes = devices[number].download(result.memory, part.end * stride)?;
            let own = &bytes[part.start * stride..];
            for other in devices.iter().enumerate().filter(|(other, _)| *other != number) {
                other.1.upload(result.memory, (part.start * stride) as u64, own)?;
            }
        }
        Ok(())
    }

    /// Returns the range of a store that contains the band's elements.
    fn band_range(&self, stored: &StoredBox) -> Range<usize> {
        let Some(band) = self.band.as_ref().filter(|_| !stored.is_tiled()) else { return stored.range() };
        let start = stored.place(|axis, _| if axis == 0 { band.rows.start } else { 0 });
        let last = stored.place(|axis, of| if axis == 0 { band.rows.end - 1 } else { of.extent - 1 });
        start..last + 1
    }
}

/// Cache of the kernels that move elements from tiles to pages, by element layout, tile extents and variant.
static PLACING: LazyLock<Mutex<PlacingKernels>> = LazyLock::new(Mutex::default);
type PlacingKernels = HashMap<(Layout, Vec<u32>, LaunchVariant), Arc<PreparedKernel>>;

/// Returns the kernel that moves elements of a result from tiles to their pages.
fn placing(
    result: &TiledResult<'_>,
    tiles: &TiledGroups,
    is_short: bool,
) -> Result<(Arc<PreparedKernel>, LaunchVariant)> {
    let stored = &result.stored;
    let (axes, is_tiled, is_part) = (stored.axes.len(), stored.is_tiled(), stored.is_part());
    let form = LaunchVariant { axes, is_tiled, is_part, is_short, ..LaunchVariant::default() };
    let tile: Vec<u32> = tiles.tile.iter().map(|extent| *extent as u32).collect();
    let key = (result.layout.clone(), tile, form.clone());
    if let Some(known) = PLACING.lock().get(&key) {
        return Ok((Arc::clone(known), form));
    }
    // Lower without the lock, because lowering is slow. Two threads may therefore lower the same kernel.
    let lowered = lower_placing(&key.0, &key.1, &form).map_err(|error| refused(&error))?;
    let kernel = kernel::VerifiedKernel::new(lowered.body.clone())?.named(lowered.name);
    let prepared = Arc::new(PreparedKernel { lowered, kernel });
    Ok((Arc::clone(PLACING.lock().entry(key).or_insert(prepared)), form))
}

/// The move of a band's elements to their pages, as a change of the result.
struct Placing<'a, 'b> {
    of: &'a Launching<'b>,
    result: &'a TiledResult<'a>,
    kernel: &'a PreparedKernel,
    form: &'a LaunchVariant,
}

impl Placing<'_, '_> {
    fn scalar(&self, source: &ScalarSource) -> u64 {
        let (stored, band) = (&self.result.stored, self.of.band.as_ref());
        match *source {
            ScalarSource::LaunchVariant => self.form.number(),
            ScalarSource::Axis { axis, part } => stored.axes[axis].scalar(part, self.form.is_short),
            ScalarSource::TileLen(part) => {
                DomainAxis { tile: stored.tile_len(), ..stored.axes[0] }.scalar(part, self.form.is_short)
            }
            ScalarSource::Stencil { part: StencilPart::First(0), .. } => {
                band.map_or(0, |band| band.rows.start as u64)
            }
            ScalarSource::Stencil { part: StencilPart::Extent(axis), .. } => {
                band.map_or(0, |band| band.axes[axis].tiles as u64)
            }
            _ => 0,
        }
    }

    fn with<R>(
        &self,
        device: &dyn Device,
        run: Run<'_>,
        report: HostSpan<'_>,
        work: impl FnOnce(&Launch<'_>) -> backend_api::Result<R>,
    ) -> backend_api::Result<R> {
        let (devices, stride) = (self.of.devices.read(), self.result.target.stride() as u64);
        let copies = devices.iter().find(|copies| copies.is_on(device));
        let room = copies.and_then(|copies| copies.elements(self.result.memory, stride));
        let Some((room, _)) = room else {
            unreachable!(
                "the launch has allocated memory on the devices of \
                    the result"
            )
        };
        let views = [LaunchView::Run(run.columns[0]), LaunchView::Run(room)];
        let params: Vec<u64> = self.kernel.lowered.scalars.iter().map(|source| self.scalar(source)).collect();
        let launch = Launch::new(&self.kernel.kernel, run.count() as u64, run.geometry, report);
        work(&Launch { views: &views, params: &params, ..launch })
    }
}

impl Change for Placing<'_, '_> {
    fn overwrites(&self, element_bytes: usize) -> bool {
        self.kernel.overwrites(0, element_bytes)
    }

    fn report_bytes(&self, _: usize) -> usize {
        Report::BYTES as usize
    }

    fn prepare(&self, device: &dyn Device, run: Run<'_>, report: Option<HostSpan<'_>>) {
        let Some(report) = report else { return };
        let _ = self.with(device, run, report, |launch| device.prepare(&[Request::Launch(launch)]));
    }

    fn submit(
        &self,
        queue: WorkQueue<'_>,
        run: Run<'_>,
        report: Option<HostSpan<'_>>,
    ) -> backend_api::Result<Ticket> {
        let Some(report) = report else { unreachable!("every launch has a report") };
        self.with(&**queue.device(), run, report, |launch| queue.submit(launch))
    }

    fn take_report(&self, _: Geometry, report: &[u64]) {
        debug_assert!(report[0] == 0, "a work-item failed, although it accesses only existing elements");
    }
}
