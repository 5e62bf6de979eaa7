//! Calls of kernel functions (`#[vmarray::kernel]`) in expressions.

use std::any::TypeId;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::LazyLock;
use std::time::Duration;

use backend_api::expr::{Instruction, Value};
use backend_api::kernel;
use parking_lot::Mutex;
use vmarray_kernel::{Define, Function, ScalarArguments, function};

use super::list::Instructions;
use super::{Expr, IntoExpr, Scalar};

/// The default time limit of a work-item, and of a function call in an expression.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Calls of kernel functions in expressions. Every function with `#[vmarray::kernel]` whose parameters and
/// result are numbers and bools has this trait. `use vmarray::prelude::*` brings it into scope.
///
/// ```
/// use vmarray::prelude::*;
///
/// #[vmarray::kernel]
/// fn collatz(n: u32) -> u32 {
///     let (mut n, mut steps) = (n, 0);
///     while n > 1 {
///         n = if n % 2 == 0 { n / 2 } else { 3 * n + 1 };
///         steps += 1;
///     }
///     steps
/// }
///
/// let array = VirtualArray::<u32>::new(1000)?;
/// array.transform(.., Field::whole().set(vmarray::expr::index().cast::<u32>()))?;
/// // All devices compute the same results as the host.
/// assert_eq!(array.max(.., collatz::of(Field::whole()))?, (0..1000).map(collatz).max());
/// let long = (0..1000).filter(|n| collatz(*n) > 100).count();
/// assert_eq!(array.count_where(.., collatz::of(Field::whole()).gt(100))?, long);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait CallInExpr: Define + Sized {
    /// Returns an expression that calls the function for each element. The arguments are one value, or a
    /// tuple of up to eight values. Each value is an expression, a field or a number.
    ///
    /// The first call of this method lowers the function. Each device compiles it for the first expression
    /// that contains it. The device calls the function for every element that an operation reads, also for
    /// elements that a filter excludes. A read outside of an array or table returns 0, and a write there has
    /// no effect; neither is an error.
    ///
    /// The function must return for each element. On a processor, the operation fails with
    /// [`KernelTime`](crate::ErrorKind::KernelTime) if a call runs longer than 60 s or another [time
    /// limit](Expr::time_limit). A GPU does not stop an endless loop.
    ///
    /// Operations with the expression fail with [`KernelRefused`](crate::ErrorKind::KernelRefused) if the
    /// function cannot be lowered, for example because it is recursive, or if it allocates memory with
    /// `alloc`.
    ///
    /// Arguments of other types than the parameters do not compile:
    ///
    /// ```compile_fail
    /// use vmarray::prelude::*;
    /// #[vmarray::kernel]
    /// fn half(x: f32) -> f32 {
    ///     x / 2.0
    /// }
    /// let array = VirtualArray::<f64>::new(10).unwrap();
    /// array.sum(.., half::of(Field::<f64, f64>::whole())).unwrap();
    /// ```
    fn of<T, A, R>(arguments: impl ExprArguments<T, A>) -> Expr<T, R>
    where
        Self: Function<A, R>,
        A: ScalarArguments,
        R: Scalar + vmarray_kernel::KernelScalar,
    {
        call::<Self, T, A, R>(arguments.listed(), Some(TIME_LIMIT))
    }
}

impl<F: Define> CallInExpr for F {}

/// The arguments of a function call in an expression: a value, or a tuple of values. See [`CallInExpr::of`].
///
/// ```
/// use vmarray::expr::{CallInExpr, Expr, ExprArguments};
/// use vmarray::prelude::*;
///
/// #[vmarray::kernel]
/// fn distance(x: f32, y: f32) -> f32 {
///     (x * x + y * y).sqrt()
/// }
/// fn far<T>(point: impl ExprArguments<T, (f32, f32)>) -> Expr<T, bool> {
///     distance::of(point).gt(4.0)
/// }
/// let points = VirtualArray::<[f32; 2]>::new(10)?;
/// points.set(5, [3.0, 4.0])?;
/// let point = Field::<[f32; 2], [f32; 2]>::whole();
/// assert_eq!(points.count_where(.., far((point.nth::<0>(), point.nth::<1>())))?, 1);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a list of expressions over elements of type `{T}` with the types `{A}`",
    note = "a function of one parameter takes an expression, a field or a number; a function of several \
            parameters takes a tuple of them",
    note = "types are not converted implicitly: use `cast`"
)]
pub trait ExprArguments<T, A> {
    /// Returns the instructions that compute the arguments, and the index of each argument's value.
    #[doc(hidden)]
    fn listed(self) -> (Instructions, Vec<Value>);
}

impl<T, F, E: IntoExpr<T, F>> ExprArguments<T, (F,)> for E {
    fn listed(self) -> (Instructions, Vec<Value>) {
        let Expr { list, value, .. } = self.into_expr();
        (list, vec![value])
    }
}

macro_rules! tuples {
    ($($($F:ident $E:ident $at:tt)*;)*) => { $(
        impl<T, $($F, $E: IntoExpr<T, $F>),*> ExprArguments<T, ($($F,)*)> for ($($E,)*) {
            fn listed(self) -> (Instructions, Vec<Value>) {
                let mut list = Instructions::default();
                let values = vec![$({
                    let expr = self.$at.into_expr();
                    list.append(&expr.list, expr.value)
                }),*];
                (list, values)
            }
        }
    )* };
}
tuples! {
    A I 0 B J 1;
    A I 0 B J 1 C K 2;
    A I 0 B J 1 C K 2 D L 3;
    A I 0 B J 1 C K 2 D L 3 E M 4;
    A I 0 B J 1 C K 2 D L 3 E M 4 F N 5;
    A I 0 B J 1 C K 2 D L 3 E M 4 F N 5 G O 6;
    A I 0 B J 1 C K 2 D L 3 E M 4 F N 5 G O 6 H P 7;
}

/// Cache of lowered functions; the key is the function's type, including its const parameters.
static LOWERED: LazyLock<Mutex<HashMap<TypeId, kernel::ScalarFunction>>> = LazyLock::new(Mutex::default);

fn lowered<F, A, R>(limit: Option<Duration>) -> Result<kernel::ScalarFunction, vmarray_kernel::Error>
where
    F: Function<A, R>,
    A: ScalarArguments,
    R: vmarray_kernel::KernelScalar,
{
    let key = TypeId::of::<F>();
    if let Some(known) = LOWERED.lock().get(&key) {
        return Ok(known.clone());
    }
    // Lower without the lock, because lowering may be slow. Two threads may lower the same function.
    let function = function::<F, A, R>()?.with_time_limit(limit);
    Ok(LOWERED.lock().entry(key).or_insert(function).clone())
}

/// Creates a call with these arguments. Its time limit is the limit of the function's first call.
pub(super) fn call<F, T, A, R>(
    (mut list, arguments): (Instructions, Vec<Value>),
    limit: Option<Duration>,
) -> Expr<T, R>
where
    F: Function<A, R>,
    A: ScalarArguments,
    R: Scalar + vmarray_kernel::KernelScalar,
{
    let instruction = match lowered::<F, A, R>(limit) {
        Ok(function) => Instruction::Call { function, arguments },
        Err(error) => {
            list.refuse(&Some(Box::new(error)));
            // After an error, push a placeholder value of the result type, because later instructions need an
            // operand.
            Instruction::Literal { of: <R as Scalar>::TYPE, bits: 0 }
        }
    };
    let value = list.push(instruction);
    Expr { list, value, marker: PhantomData }
}
