//! Calls of scalar functions on the host: by their native Rust code, or by the interpreter.

use std::time::Duration;

use super::{Checked, ScalarFunction};
use crate::Result;
use crate::expr::Geometry;
use crate::kernel::interpret::{from_bits, to_bits};
use crate::kernel::{Interpreter, Report, TimeLimit, Type};

impl ScalarFunction {
    /// Computes the function's result on the host by interpreting its body. Arguments and result are values
    /// as 64 bits; see [`Type`](crate::kernel::Type).
    ///
    /// # Panics
    /// If the list has too few arguments.
    #[must_use]
    pub fn call(&self, arguments: &[u64]) -> u64 {
        self.interpreted(None, |call| call(arguments).unwrap_or_default())
    }

    /// Computes the function's results for many elements on the host. [`HostFunction`](super::HostFunction)
    /// describes the layout of the arguments and results. Runs the function's Rust code if it has any, else
    /// the interpreter.
    ///
    /// If one of these elements is the first to exceed `limit`, the report has the element's number and the
    /// [loop](Report::loop_over_time). If any element of the request has [exceeded](TimeLimit::is_exceeded)
    /// the limit, the results are unspecified.
    ///
    /// # Panics
    /// If the list has too few arguments.
    #[must_use]
    pub fn call_all(&self, arguments: &[&[u8]], results: &mut [u8], limit: Option<&TimeLimit>) -> Report {
        if let Some(host) = self.0.host {
            let late = host(arguments, results, limit);
            return late.map_or_else(Report::default, |number| self.report_of(arguments, number));
        }
        self.interpreted(limit, |call| {
            for (number, result) in results.chunks_exact_mut(self.gives().bytes() as usize).enumerate() {
                match call(&self.values(arguments, number)) {
                    Ok(value) => from_bits(result, value.to_le_bytes()),
                    Err(report) => return Report { item: number as u64, ..report },
                }
            }
            Report::default()
        })
    }

    /// Returns the arguments for element `number`, each as 64 bits.
    fn values(&self, arguments: &[&[u8]], number: usize) -> Vec<u64> {
        let value = |(of, argument): (&Type, &&[u8])| {
            let width = of.bytes() as usize;
            to_bits(&argument[number * width..][..width])
        };
        self.params().iter().zip(arguments).map(value).collect()
    }

    /// Interprets some iterations of a call that exceeded its time limit in native code, to find the loop.
    #[cold]
    fn report_of(&self, arguments: &[&[u8]], number: u64) -> Report {
        let limit = TimeLimit::new(Duration::ZERO);
        let report =
            self.interpreted(Some(&limit), |call| call(&self.values(arguments, number as usize)).err());
        Report { item: number, ..report.unwrap_or(Report::time_over(0, number)) }
    }

    fn interpreted<R>(
        &self,
        limit: Option<&TimeLimit>,
        run: impl FnOnce(&mut dyn FnMut(&[u64]) -> Result<u64, Report>) -> R,
    ) -> R {
        let Checked { kernel, result, table, .. } = &*self.0;
        Interpreter { table, limit, ..Interpreter::new(kernel, 1, Geometry::plain(0)) }.calls(*result, run)
    }
}
