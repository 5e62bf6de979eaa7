//! Routes of copies on a simulated device, and the virtual time that each route costs.

use backend_api::{Route, Routing, Transfer};
use parking_lot::Mutex;

/// A route of copies, and its cost in addition to latency and bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct RouteCost {
    pub route: Route,
    pub submission_ns: u64,
    pub copy_ns: u64,
}

/// Routes of a device with their costs, and the table for the choice of a route.
#[derive(Debug)]
pub(super) struct Routes {
    names: Vec<Route>,
    costs: Vec<RouteCost>,
    routing: Mutex<Routing>,
}

impl Routes {
    pub fn new(costs: Vec<RouteCost>) -> Self {
        Self { names: costs.iter().map(|cost| cost.route).collect(), costs, routing: Mutex::default() }
    }

    pub fn names(&self) -> &[Route] {
        &self.names
    }

    pub fn routing(&self) -> Routing {
        *self.routing.lock()
    }

    pub fn set_routing(&self, routing: Routing) {
        if self.costs.len() > 1 {
            *self.routing.lock() = routing;
        }
    }

    /// Returns the additional virtual time of copies in nanoseconds. The route is `forced`, else the table's
    /// choice, else the first route.
    pub fn cost_ns(&self, forced: Option<Route>, transfers: &[Transfer]) -> u64 {
        let Some(first) = self.costs.first() else { return 0 };
        let find = |route| self.costs.iter().find(|cost| Some(cost.route) == route);
        let cost = find(forced).or_else(|| find(self.by_table(transfers))).unwrap_or(first);
        cost.submission_ns.saturating_add(cost.copy_ns.saturating_mul(transfers.len() as u64))
    }

    fn by_table(&self, transfers: &[Transfer]) -> Option<Route> {
        // Saturation never happens, because the check of the request has already refused an overflow.
        let bytes = transfers.iter().fold(0_u64, |sum, transfer| sum.saturating_add(transfer.bytes()));
        let routing = self.routing();
        if transfers.iter().all(|transfer| matches!(transfer, Transfer::Upload { .. })) {
            routing.upload(transfers.len(), bytes)
        } else if transfers.iter().all(|transfer| matches!(transfer, Transfer::Download { .. })) {
            routing.download(transfers.len(), bytes)
        } else {
            None
        }
    }
}
