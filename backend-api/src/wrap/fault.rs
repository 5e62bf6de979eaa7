//! Fault injection: rules that select calls of a device, and the errors that the calls return.

use crate::{ErrorKind, QueueId};

use super::random::SplitMix64;

/// Defines the enum of operations that can fail, with their names.
macro_rules! operations {
    ($($Operation:ident $name:literal $of:literal,)*) => {
        /// An operation that can fail by fault injection: a method of [`Device`](crate::Device), or a kind of
        /// [`Request`](crate::Request).
        ///
        /// ```
        /// use backend_api::wrap::Operation;
        /// assert_eq!(Operation::AllocateHost.name(), "allocate_host");
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Operation {
            $(#[doc = concat!("[`", $of, "`](crate::", $of, ")")] $Operation,)*
        }

        impl Operation {
            const ALL: &[Self] = &[$(Self::$Operation,)*];

            /// Name of the method or request, such as `"submit"`.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$Operation => $name,)*
                }
            }

            /// Returns true if the operation is a kind of request, whose submissions return tickets.
            pub(super) fn gives_a_ticket(self) -> bool {
                match self {
                    $(Self::$Operation => $of.starts_with("Request::"),)*
                }
            }
        }
    };
}

operations! {
    Memory "memory" "Device::memory",
    CreateQueue "create_queue" "Device::create_queue",
    Allocate "allocate" "Device::allocate",
    AllocateExtensible "allocate_extensible" "Device::allocate_extensible",
    Extend "extend" "Device::extend",
    AllocateHost "allocate_host" "Device::allocate_host",
    ImportHost "import_host" "Device::import_host",
    Submit "submit" "Request::Copies",
    Fill "fill" "Request::Fill",
    Search "search" "Request::Search",
    Gather "gather" "Request::Gather",
    Scatter "scatter" "Request::Scatter",
    Compute "compute" "Request::Compute",
    Prepare "prepare" "Device::prepare",
    Launch "launch" "Request::Launch",
    OrderAfter "order_after" "Device::order_after",
}

impl Operation {
    /// Returns the operation with this name; `None` if there is none.
    #[doc(hidden)]
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|operation| operation.name() == name)
    }
}

/// A rule of fault injection: it selects calls of a device that fail, and the kind of their error. Without
/// further conditions, every call of the rule's operation fails.
///
/// A rule with [`ErrorKind::Lost`] makes the whole device lost, for good. Rules are for `Faulty` of
/// `vmarray-conformance`, and for devices that inject faults themselves, such as a simulation.
///
/// ```
/// use backend_api::{Device, ErrorKind, Request, wrap::{Fault, Operation}};
/// use vmarray_conformance::wrap::Faulty;
/// # let second = backend_host::HostDevice::new(1 << 20)?;
/// let fault = || Fault::new(Operation::Submit, ErrorKind::Driver);
/// # let outcomes = |fault: Fault| {
/// #     let device = Faulty::new(backend_host::HostDevice::new(1 << 20)?);
/// #     let queue = device.create_queue()?;
/// #     device.inject(fault);
/// #     let submit = || device.submit(&queue, &Request::Copies(&[], None));
/// #     let ask = |_| submit().and_then(|ticket| device.wait(ticket)).is_ok();
/// #     Ok::<_, backend_api::Error>((0..4).map(ask).collect::<Vec<bool>>())
/// # };
/// // The outcomes of four calls:
/// assert_eq!(outcomes(fault())?, [false; 4]);
/// assert_eq!(outcomes(fault().on_call(2))?, [true, false, true, true]);
/// assert_eq!(outcomes(fault().from_call(3))?, [true, true, false, false]);
/// assert_eq!(outcomes(fault().every(2))?, [true, false, true, false]);
/// // Random calls, given by the seed. The call succeeds, but its ticket fails.
/// let chance = fault().with_chance(0.5, 42).reported_later();
/// assert_eq!(outcomes(chance.clone())?, outcomes(chance)?);
/// // A rule for another queue never matches. The third call of any kind loses the device.
/// assert_eq!(outcomes(fault().in_queue(second.create_queue()?.id()))?, [true; 4]);
/// assert_eq!(outcomes(Fault::anywhere(ErrorKind::Lost).on_call(3))?, [true, true, false, false]);
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Fault {
    operation: Option<Operation>,
    queue: Option<QueueId>,
    kind: ErrorKind,
    when: When,
    later: bool,
    /// The number of calls so far that match the rule.
    seen: u64,
}

#[derive(Clone, Debug)]
enum When {
    Always,
    On(u64),
    From(u64),
    Every(u64),
    Chance { below: u64, random: SplitMix64 },
}

impl Fault {
    /// Creates a rule: calls of `operation` fail with an error of kind `kind`.
    #[must_use]
    pub fn new(operation: Operation, kind: ErrorKind) -> Self {
        Self { operation: Some(operation), ..Self::anywhere(kind) }
    }

    /// Creates a rule: calls of all operations fail with an error of kind `kind`. Conditions such as
    /// [`on_call`](Self::on_call) count the calls of all operations together.
    #[must_use]
    pub fn anywhere(kind: ErrorKind) -> Self {
        Self { operation: None, queue: None, kind, when: When::Always, later: false, seen: 0 }
    }

    /// Restricts the rule to calls that concern this queue.
    #[must_use]
    pub fn in_queue(mut self, queue: QueueId) -> Self {
        self.queue = Some(queue);
        self
    }

    /// Restricts the rule to the `n`-th matching call, counted from 1 since the rule was added.
    #[must_use]
    pub fn on_call(mut self, n: u64) -> Self {
        self.when = When::On(n);
        self
    }

    /// Restricts the rule to the `n`-th matching call and all later calls.
    #[must_use]
    pub fn from_call(mut self, n: u64) -> Self {
        self.when = When::From(n);
        self
    }

    /// Restricts the rule to every `n`-th matching call; 0 counts as 1.
    #[must_use]
    pub fn every(mut self, n: u64) -> Self {
        self.when = When::Every(n.max(1));
        self
    }

    /// Restricts the rule to random calls: each matching call fails with this probability. The same seed and
    /// the same calls produce the same failures.
    ///
    /// # Panics
    /// If the probability is not between 0 and 1, such as NaN.
    #[must_use]
    pub fn with_chance(mut self, probability: f64, seed: u64) -> Self {
        assert!(
            (0.0..=1.0).contains(&probability),
            "{probability} is not a probability; use one from 0 to 1"
        );
        let below = (probability * (u64::MAX as f64)) as u64;
        self.when = When::Chance { below, random: SplitMix64::new(seed) };
        self
    }

    /// Lets a matching call succeed, but makes its ticket (submitted work) fail. The device that injects the
    /// fault defines the part of the work that it still does. Calls that return no ticket fail at once.
    #[must_use]
    pub fn reported_later(mut self) -> Self {
        self.later = true;
        self
    }

    /// Counts a call that matches the rule, and returns true if it fails.
    fn strikes(&mut self, operation: Operation, queue: Option<QueueId>) -> bool {
        if self.operation.is_some_and(|own| own != operation) || (self.queue.is_some() && self.queue != queue)
        {
            return false;
        }
        self.seen += 1;
        match &mut self.when {
            When::Always => true,
            When::On(n) => self.seen == *n,
            When::From(n) => self.seen >= *n,
            When::Every(n) => self.seen.is_multiple_of(*n),
            When::Chance { below, random } => random.next() < *below || *below == u64::MAX,
        }
    }
}

/// The failure that a rule causes for one call.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strike {
    /// Kind of the error with which the call fails.
    pub kind: ErrorKind,
    /// True if the call returns a ticket (for submitted work), and the ticket fails instead of the call.
    pub later: bool,
}

/// A device's list of fault-injection rules. Each call checks all rules in the order in which the program
/// added them; the first rule that matches decides.
#[doc(hidden)]
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    faults: Vec<Fault>,
    struck: u64,
}

impl FaultPlan {
    /// Adds a rule of fault injection.
    pub fn add(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    /// Removes all rules.
    pub fn clear(&mut self) {
        self.faults.clear();
    }

    /// Returns the number of calls that failed because of a rule.
    #[must_use]
    pub fn struck(&self) -> u64 {
        self.struck
    }

    /// Counts a call for each rule that it matches. Returns the failure of the call; `None` for a success.
    pub fn strike(&mut self, operation: Operation, queue: Option<QueueId>) -> Option<Strike> {
        let mut first = None;
        for fault in &mut self.faults {
            if fault.strikes(operation, queue) && first.is_none() {
                first = Some(Strike { kind: fault.kind, later: fault.later && operation.gives_a_ticket() });
            }
        }
        self.struck += u64::from(first.is_some());
        first
    }
}
