//! Scalar functions that expressions can call: verified kernel bodies with parameters and a result.

mod call;

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use super::{Body, Op, Reg, TimeLimit, Type, VerifiedKernel};
use crate::{Error, ErrorKind, OverTime, Result};

/// The Rust function of a [`ScalarFunction`] for the host, for [`ScalarFunction::with_host`]. It computes the
/// results for many elements at once. `arguments` has, for each argument, the bytes of its values for all
/// elements, without alignment; bools are bytes of 0 and 1. The function writes one result for each element
/// to `results`.
///
/// If an element takes longer than the limit, here or in another thread of the same request, the function
/// returns early; the remaining results are unspecified. If an element of this call was the first to exceed
/// the limit, the function returns the number of the element; otherwise `None`. The limit is `None` for
/// functions without loops.
///
/// ```
/// use backend_api::kernel::HostFunction;
/// let halves: HostFunction = |arguments, results, _| {
///     results.iter_mut().zip(arguments[0]).for_each(|(result, argument)| *result = argument / 2);
///     None
/// };
/// let mut results = [0; 2];
/// assert_eq!(halves(&[&[6, 9]], &mut results, None), None);
/// assert_eq!(results, [3, 4]);
/// ```
pub type HostFunction = fn(arguments: &[&[u8]], results: &mut [u8], limit: Option<&TimeLimit>) -> Option<u64>;

/// A scalar function: it maps numbers and bools to one number or bool, and expressions can call it. It is a
/// [`Body`] whose parameters are the arguments, and whose last operation writes the result. Cheap to clone.
/// Two functions are equal if their bodies and tables are equal.
///
/// ```
/// use backend_api::kernel::{Binary, Body, ScalarFunction, Op, Reg, Type};
/// // x * x + y
/// let [x, y] = [0, 1].map(Reg);
/// let function = ScalarFunction::new(
///     Body {
///         registers: vec![Type::I32; 2],
///         params: vec![Type::I32; 2],
///         code: vec![
///             Op::Param { to: x, number: 0 },
///             Op::Param { to: y, number: 1 },
///             Op::Binary { op: Binary::Mul, to: x, left: x, right: x },
///             Op::Binary { op: Binary::Add, to: x, left: x, right: y },
///         ],
///         ..Body::default()
///     },
///     Vec::new(),
/// )?;
/// assert_eq!((function.params(), function.gives(), function.result()), (&[Type::I32; 2][..], Type::I32, x));
/// assert_eq!(function.call(&[5, 3]), 28);
/// let mut results = [0; 8];
/// let arguments = [[5_i32, -6], [3, 0]].map(|of| of.map(i32::to_ne_bytes).concat());
/// assert_eq!(function.call_all(&[&arguments[0], &arguments[1]], &mut results, None).failures, 0);
/// assert_eq!(results, *[28_i32, 36].map(i32::to_ne_bytes).concat());
/// // Devices that compute on the CPU call the Rust function for the host.
/// let halved = function.clone().named("halved").with_host(|_, results, _| {
///     results.fill(1);
///     None
/// });
/// assert_eq!(halved.call_all(&[&arguments[0], &arguments[1]], &mut results, None).failures, 0);
/// assert_eq!((results, halved.kernel().name(), halved.table()), ([1; 8], "halved", &[][..]));
/// // The error of a call that ran for too long names the loop.
/// let timed = function.clone().with_loops(vec![(0, "file.rs:3".into())]);
/// assert_eq!(timed.over_time(0, 7).over_time().map(|call| &*call.place), Some("file.rs:3"));
/// // The function has no loop, so it needs no limit.
/// assert_eq!(timed.time_limit(), None);
/// // A body whose last operation writes no register is refused.
/// let nothing = Body { code: vec![Op::Block { body: vec![] }], ..Body::default() };
/// assert!(ScalarFunction::new(nothing, Vec::new()).is_err());
/// # Ok::<_, backend_api::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ScalarFunction(Arc<Checked>);

#[derive(Clone, Debug)]
struct Checked {
    kernel: VerifiedKernel,
    result: Reg,
    table: Vec<u8>,
    host: Option<HostFunction>,
    time_limit: Option<Duration>,
    /// Source location (file and line) of each loop, with the number of the loop's operation.
    loops: Vec<(u32, String)>,
}

impl ScalarFunction {
    /// Verifies a body, and creates a function from it and the bytes of its constant tables.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) as for [`Body::verify`]. Also if the last operation
    /// writes no register, or if the tables have another length than declared. Also if the body has views,
    /// groups (thread blocks), a private heap or built-in values.
    pub fn new(body: Body, table: Vec<u8>) -> Result<Self> {
        let Some(result) = body.code.last().and_then(Op::written) else {
            return Err(invalid("the function's last operation does not write a register".into()));
        };
        if !body.views.is_empty() || body.group_len.is_some() {
            return Err(invalid("a function has views or groups; only kernels can have them".into()));
        }
        if table.len() as u64 != body.table_bytes() {
            let (given, wanted) = (table.len(), body.table_bytes());
            return Err(invalid(format!("the tables have {given} bytes, but the body declares {wanted}")));
        }
        let mut asks = false;
        body.operations(|_, op| asks |= matches!(op, Op::Builtin { .. }));
        let kernel = VerifiedKernel::new(body)?.named("function");
        if asks || kernel.needs().private_heap {
            return Err(invalid(
                "a function uses built-in values or a private heap, which only kernels can use".into(),
            ));
        }
        let (host, time_limit, loops) = (None, None, Vec::new());
        Ok(Self(Arc::new(Checked { kernel, result, table, host, time_limit, loops })))
    }

    /// Returns the same function with a name, which errors show.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        let checked = Arc::make_mut(&mut self.0);
        checked.kernel = checked.kernel.clone().named(name);
        self
    }

    /// Returns the same function with a Rust function for the host, which must compute the body's results.
    #[must_use]
    pub fn with_host(mut self, form: HostFunction) -> Self {
        Arc::make_mut(&mut self.0).host = Some(form);
        self
    }

    /// Returns the same function with the source locations (file and line) of its loops, which errors show.
    /// Each location comes with the number of the loop's [operation](Body::operation).
    #[must_use]
    pub fn with_loops(mut self, places: Vec<(u32, String)>) -> Self {
        Arc::make_mut(&mut self.0).loops = places;
        self
    }

    /// Returns the same function with a time limit for each call. The limit applies on devices that compute
    /// with the CPU. If a call runs longer, its request fails with an error that has an
    /// [`OverTime`](crate::OverTime). Equality ignores the limit.
    #[must_use]
    pub fn with_time_limit(mut self, limit: Option<Duration>) -> Self {
        Arc::make_mut(&mut self.0).time_limit = limit;
        self
    }

    /// Returns the time limit of a call; `None` if the function has no limit or no loops.
    #[must_use]
    pub fn time_limit(&self) -> Option<Duration> {
        self.0.time_limit.filter(|_| self.0.kernel.body().has_loops())
    }

    /// Returns the error for a call of the function that exceeded its time limit. `element` is the index of
    /// the element, and `site` the [operation](Body::operation) number of its loop.
    #[must_use]
    pub fn over_time(&self, site: u32, element: u64) -> Error {
        let Checked { kernel, loops, time_limit, .. } = &*self.0;
        // If no loop has this number, report the first loop, because it contains or precedes all other loops.
        let place = loops.iter().find(|(number, _)| *number == site).or(loops.first());
        Error::over_time_of(OverTime {
            function: kernel.name().to_owned(),
            place: place.map_or_else(String::new, |(_, place)| place.clone()),
            limit: time_limit.unwrap_or_default(),
            element,
        })
    }

    /// Returns the types of the arguments.
    #[must_use]
    pub fn params(&self) -> &[Type] {
        &self.0.kernel.body().params
    }

    /// Returns the type of the result.
    #[must_use]
    pub fn gives(&self) -> Type {
        self.0.kernel.body().registers[self.0.result.at()]
    }

    /// Returns the register that holds the result when the body ends.
    #[must_use]
    pub fn result(&self) -> Reg {
        self.0.result
    }

    /// Returns the function as a kernel: its verified body and its name.
    #[must_use]
    pub fn kernel(&self) -> &VerifiedKernel {
        &self.0.kernel
    }

    /// Returns the contents of the function's constant tables.
    #[must_use]
    pub fn table(&self) -> &[u8] {
        &self.0.table
    }
}

impl PartialEq for ScalarFunction {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || (self.0.kernel == other.0.kernel && self.0.table == other.0.table)
    }
}

impl Eq for ScalarFunction {}

impl Hash for ScalarFunction {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.kernel.hash(state);
    }
}

fn invalid(detail: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, "function").with_detail(detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Builtin, Memory, TableDecl};

    #[test]
    fn functions_that_ask_for_the_item_or_lack_their_tables_are_refused() {
        let refused = |body: Body, table: Vec<u8>, what: &str| {
            let error = ScalarFunction::new(body, table).unwrap_err();
            assert!(error.detail().contains(what), "{error}");
        };
        let asks = Op::Builtin { to: Reg(0), what: Builtin::Item };
        let body = |code| Body { registers: vec![Type::U64], code, ..Body::default() };
        refused(body(vec![asks]), Vec::new(), "built-in values");
        let one = Op::Literal { to: Reg(0), bits: 1 };
        let taken = Op::PrivateAlloc { to: Reg(0), bytes: Reg(0) };
        refused(body(vec![one.clone(), taken]), Vec::new(), "a private heap");
        refused(Body { group_len: Some(1), ..body(vec![one.clone()]) }, Vec::new(), "views or groups");
        let tables = vec![TableDecl { of: Memory::Value(Type::U64), len: 2 }];
        let look = Op::Lookup { to: Reg(0), table: 0, at: Reg(0) };
        let with_table = Body { tables, ..body(vec![one, look]) };
        refused(with_table.clone(), vec![0; 8], "the tables have 8 bytes, but the body declares 16");
        let words = [3_u64, 4].map(u64::to_ne_bytes).concat();
        let [function, other] =
            [words, vec![0; 16]].map(|table| ScalarFunction::new(with_table.clone(), table).unwrap());
        assert_eq!((function.call(&[]), other.call(&[])), (4, 0));
        assert_ne!(function, other);
    }
}
