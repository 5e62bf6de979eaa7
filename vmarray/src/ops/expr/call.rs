//! Kernel functions in expressions.

use std::any::TypeId;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::LazyLock;

use backend_api::expr::{Instruction, Value};
use backend_api::kernel;
use parking_lot::Mutex;
use vmarray_kernel::{Define, Function, ScalarArguments, function};

use super::list::Instructions;
use super::{Expr, IntoExpr, Scalar};

/// Functions of the program in expressions: every function with `#[vmarray::kernel]` whose parameters and
/// result are numbers and bools. Come by it with `use vmarray::prelude::*`.
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
/// // What the host says for a number, all devices say.
/// assert_eq!(array.max(.., collatz::of(Field::whole()))?, (0..1000).map(collatz).max());
/// let long = (0..1000).filter(|n| collatz(*n) > 100).count();
/// assert_eq!(array.count_where(.., collatz::of(Field::whole()).gt(100))?, long);
/// # Ok::<(), vmarray::Error>(())
/// ```
pub trait CallInExpr: Define + Sized {
    /// What the function gives for these values of an element: one value, or a tuple of up to eight, each an
    /// expression, a field or a number.
    ///
    /// It is lowered when it is named here for the first time, and translated for a device with the first
    /// expression that is used there. It is called for every element that an operation looks at, those that a
    /// filter leaves out included, and has to come to an end for each: nothing stops a loop without one. What
    /// it accesses outside of arrays and tables reads 0 and writes nothing, and nobody is told.
    ///
    /// Operations that use it fail with [`KernelRefused`](crate::ErrorKind::KernelRefused) if it cannot be
    /// lowered, as with a recursion, or if it takes memory by `alloc`.
    ///
    /// Other types than those of its parameters do not compile:
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
        R: Scalar + vmarray_kernel::Scalar,
    {
        call::<Self, T, A, R>(arguments.listed())
    }
}

impl<F: Define> CallInExpr for F {}

/// What a function is given for each element: a value, or a tuple of them. See [`CallInExpr::of`].
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
    message = "`{Self}` is no list of expressions over elements of type `{T}` with the types `{A}`",
    note = "a function of one parameter takes an expression, a field or a number; one of several a tuple of them",
    note = "types are not converted by themselves: see `cast`"
)]
pub trait ExprArguments<T, A> {
    /// Their instructions, and which values they are.
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

/// Functions that were lowered so far, each with its type and const parameters.
static LOWERED: LazyLock<Mutex<HashMap<TypeId, kernel::Function>>> = LazyLock::new(Mutex::default);

fn lowered<F, A, R>() -> Result<kernel::Function, vmarray_kernel::Error>
where
    F: Function<A, R>,
    A: ScalarArguments,
    R: vmarray_kernel::Scalar,
{
    let key = TypeId::of::<F>();
    if let Some(known) = LOWERED.lock().get(&key) {
        return Ok(known.clone());
    }
    // Not under the lock: two threads may do it both.
    let function = function::<F, A, R>()?;
    Ok(LOWERED.lock().entry(key).or_insert(function).clone())
}

/// A call with these arguments.
pub(super) fn call<F, T, A, R>((mut list, arguments): (Instructions, Vec<Value>)) -> Expr<T, R>
where
    F: Function<A, R>,
    A: ScalarArguments,
    R: Scalar + vmarray_kernel::Scalar,
{
    let instruction = match lowered::<F, A, R>() {
        Ok(function) => Instruction::Call { function, arguments },
        Err(error) => {
            list.refuse(&Some(Box::new(error)));
            // Something of the type, for the sake of what comes after it.
            Instruction::Literal { of: <R as Scalar>::TYPE, bits: 0 }
        }
    };
    let value = list.push(instruction);
    Expr { list, value, marker: PhantomData }
}
