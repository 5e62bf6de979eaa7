//! Lowering of the patterns of `let` and `match` in kernels.

use super::expr::constant;
use super::value::{LoweredValue, ScalarOperand};
use super::{Lower, Result, fold};
use crate::tree::Pattern;
use backend_api::kernel::{Binary, Type};

impl Lower {
    /// Binds the variables of a pattern to the parts of a value that the pattern matches.
    pub fn bind(&mut self, pattern: &'static Pattern, value: &LoweredValue) -> Result<()> {
        match pattern {
            Pattern::Bind(number, is_mutable, inner) => {
                let stored = if value.is_reference {
                    value.clone()
                } else if *is_mutable {
                    self.variable(value)?
                } else {
                    self.kept(value)?
                };
                self.frame()?.locals[usize::from(*number)] = Some(stored);
                inner.map_or(Ok(()), |inner| self.bind(inner, value))
            }
            Pattern::Tuple(parts) => {
                let value = self.settled(value)?;
                for (number, part) in parts.iter().enumerate() {
                    let of = value.part(number).ok_or_else(|| self.unexpected("this pattern"))?;
                    self.bind(part, &of)?;
                }
                Ok(())
            }
            Pattern::Struct(fields) => {
                let value = self.settled(value)?;
                for (name, part) in *fields {
                    let number = value.layout.part(name);
                    let of = number.and_then(|number| value.part(number));
                    let of = of.ok_or_else(|| self.unexpected("this pattern"))?;
                    self.bind(part, &of)?;
                }
                Ok(())
            }
            // `_` also evaluates the value, so that an index out of bounds in the value is reported.
            Pattern::Wild if !value.is_reference => self.settled(value).map(|_| ()),
            _ => Ok(()),
        }
    }

    /// Declares the variables of a pattern without values; later code assigns them.
    pub fn declare(&mut self, pattern: &'static Pattern) -> Result<()> {
        match pattern {
            Pattern::Bind(number, ..) => self.frame()?.locals[usize::from(*number)] = None,
            Pattern::Tuple(parts) => parts.iter().try_for_each(|part| self.declare(part))?,
            _ => {}
        }
        Ok(())
    }

    /// Lowers the test of a value against a pattern. Returns a bool operand, true if the value matches.
    pub fn fits(&mut self, pattern: &'static Pattern, value: &LoweredValue) -> Result<ScalarOperand> {
        match pattern {
            Pattern::Wild => Ok(TRUE),
            Pattern::Bind(.., inner) => inner.map_or(Ok(TRUE), |inner| self.fits(inner, value)),
            Pattern::Tuple(parts) => {
                let mut all = TRUE;
                for (number, part) in parts.iter().enumerate() {
                    let of = value.part(number).ok_or_else(|| self.unexpected("this pattern"))?;
                    let fits = self.fits(part, &of)?;
                    all = self.binary(Binary::And, all, fits);
                }
                Ok(all)
            }
            Pattern::Struct(fields) => {
                let mut all = TRUE;
                for (name, part) in *fields {
                    let of = value.layout.part(name).and_then(|number| value.part(number));
                    let of = of.ok_or_else(|| self.unexpected("this pattern"))?;
                    let fits = self.fits(part, &of)?;
                    all = self.binary(Binary::And, all, fits);
                }
                Ok(all)
            }
            Pattern::Literal(_) | Pattern::Constant(_) => {
                let of = self.operand(value)?;
                let wanted = self.bound(pattern, self.type_of(of))?;
                Ok(self.binary(Binary::Eq, of, wanted))
            }
            Pattern::Range(start, end, is_closed) => {
                let of = self.operand(value)?;
                let mut all = TRUE;
                if let Some(start) = start {
                    let start = self.bound(start, self.type_of(of))?;
                    all = self.binary(Binary::Le, start, of);
                }
                if let Some(end) = end {
                    let end = self.bound(end, self.type_of(of))?;
                    let op = if *is_closed { Binary::Le } else { Binary::Lt };
                    let below = self.binary(op, of, end);
                    all = self.binary(Binary::And, all, below);
                }
                Ok(all)
            }
            Pattern::Or(parts) => {
                let mut any = ScalarOperand::Constant(Type::Bool, 0);
                for part in *parts {
                    let fits = self.fits(part, value)?;
                    any = self.binary(Binary::Or, any, fits);
                }
                Ok(any)
            }
        }
    }

    /// Lowers a number in a pattern, such as the end of a range.
    fn bound(&mut self, pattern: &'static Pattern, of: Type) -> Result<ScalarOperand> {
        let value = match pattern {
            Pattern::Literal(text) => {
                constant(of, fold::literal(of, text).ok_or_else(|| self.unexpected("this pattern"))?)
            }
            Pattern::Constant(number) => {
                let Some(known) = self.frame()?.definition.constants.get(usize::from(*number)).cloned()
                else {
                    return Err(self.unexpected("this pattern"));
                };
                self.constant(&known.layout, &known.values)
            }
            _ => return Err(self.unexpected("this pattern")),
        };
        self.operand(&value)
    }
}

/// The condition `true`.
const TRUE: ScalarOperand = ScalarOperand::Constant(Type::Bool, 1);
