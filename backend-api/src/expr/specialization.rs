//! Specialization keys: the parts of a compute request on which the code of its kernels depends. Backends
//! that generate code cache the compiled kernels by these keys.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Action, Compute, FieldStore, Type, Value};
use crate::kernel::{Builtin, Op, Reg, ScalarFunction};

/// The parts of a compute request that determine the code of its kernels: the program and the operation. A
/// backend caches kernels by this key; all other parts of a request are kernel parameters.
///
/// ```
/// use backend_api::expr::{Action, Geometry, Instruction, Program, Specialization, FieldStore, Type, Value};
/// use backend_api::{BufferHandle, Compute, Elements};
/// let (memory, stores) = (BufferHandle::unique(), [FieldStore { value: Value(0), source: 0, offset: 0 }]);
/// let sources = [Elements { start: memory.at(0), count: 10, stride: 4 }];
/// let make = |bits| {
///     let program = Program::new(vec![Instruction::Literal { of: Type::U32, bits }]).unwrap();
///     let action = Action::Store { stores: &stores, filter: None };
///     let compute = Compute { program: &program, sources: &sources, geometry: Geometry::plain(0), action };
///     Specialization::new(&compute, 16)
/// };
/// assert_eq!(make(7).0, make(8).0, "literals are parameters");
/// assert_eq!((make(7).1, make(7).0.functions().len()), (vec![7], 0));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Specialization {
    /// The program's [operations](super::Program::ops) in a normal form, which is equal for requests that can
    /// share kernels. Literals that become kernel parameters have the bits 0. A `FieldEquals` has the offset
    /// 0 and an empty value. `Builtin::Index` replaces each unused operation.
    pub ops: Vec<Op>,
    /// Type of each value.
    pub types: Vec<Type>,
    /// For each operation: true if the [`task`](Self::task) (such as a sum) depends on its result.
    pub needed: Vec<bool>,
    /// For each operation: the index of its kernel parameter, if the operation is a literal that the kernels
    /// take as a parameter. A `FieldEquals` has two parameters: bytes 0..8 and 8..16 of its value, repeated
    /// if the value is shorter.
    pub literals: Vec<Option<usize>>,
    /// The kernels' operation on the program's values, such as a sum.
    pub task: Task,
    /// Page length in the request's [`Geometry`](super::Geometry) if the task needs element indices; else 1.
    pub page_len: u64,
    /// If the task needs element indices, the number of channels (shares of the array's pages) in the
    /// [`Geometry`](super::Geometry); else 1.
    pub channels: u64,
}

/// The kind of an [`Action`], without the parts that kernels take as parameters.
///
/// ```
/// use backend_api::expr::{Task, Value};
/// let task = Task::Sum { value: Value(3), filter: None };
/// assert_eq!((task.value(), task.filter()), (Some(Value(3)), None));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the fields have the names of `Action`'s")]
pub enum Task {
    /// The kind [`Action::Find`].
    Find { predicate: Value },
    /// The kind [`Action::Sum`].
    Sum { value: Value, filter: Option<Value> },
    /// The kind [`Action::Extremes`].
    Extremes { value: Value, filter: Option<Value>, least: bool, greatest: bool },
    /// The kind [`Action::Histogram`].
    Histogram { value: Value, filter: Option<Value> },
    /// The kind [`Action::Store`].
    Store { stores: Vec<FieldStore>, filter: Option<Value> },
}

impl Task {
    /// Returns the value that the task reduces, if the task is a reduction.
    #[must_use]
    pub fn value(&self) -> Option<Value> {
        match *self {
            Self::Sum { value, .. } | Self::Extremes { value, .. } | Self::Histogram { value, .. } => {
                Some(value)
            }
            Self::Find { .. } | Self::Store { .. } => None,
        }
    }

    /// Returns the bool value that selects the elements of the task, if any.
    #[must_use]
    pub fn filter(&self) -> Option<Value> {
        match *self {
            Self::Find { predicate } => Some(predicate),
            Self::Sum { filter, .. }
            | Self::Extremes { filter, .. }
            | Self::Histogram { filter, .. }
            | Self::Store { filter, .. } => filter,
        }
    }
}

impl Specialization {
    /// Returns the specialization of a request, and the bits of the literals that become kernel parameters.
    /// At most `literals_max` literals become parameters.
    #[must_use]
    pub fn new(compute: &Compute<'_>, literals_max: usize) -> (Self, Vec<u64>) {
        let program = compute.program;
        let needed = program.needed(&compute.results());
        let mut values = Vec::new();
        let mut literals = vec![None; needed.len()];
        let mut ops = program.ops().to_vec();
        for at in 0..needed.len() {
            if let Op::FieldEquals { offset, bytes, .. } = &mut ops[at]
                && needed[at]
            {
                let word = |start| {
                    u64::from_ne_bytes(std::array::from_fn(|byte| bytes[(start + byte) % bytes.len()]))
                };
                literals[at] = Some(values.len());
                values.extend([word(0), word(8)]);
                (*offset, *bytes) = (0, [].into());
            }
        }
        for at in 0..needed.len() {
            if !needed[at] {
                // Replace unused operations by a fixed operation, so that they do not change the key.
                ops[at] = Op::Builtin { to: Reg(at as u32), what: Builtin::Index };
            } else if let Op::Literal { bits, .. } = &mut ops[at]
                && values.len() < literals_max
            {
                literals[at] = Some(values.len());
                values.push(std::mem::take(bits));
            }
        }
        let task = match compute.action {
            Action::Find { predicate, .. } => Task::Find { predicate },
            Action::Sum { value, filter, .. } => Task::Sum { value, filter },
            Action::Extremes { value, filter, least, greatest, .. } => {
                Task::Extremes { value, filter, least, greatest }
            }
            Action::Histogram { value, filter, .. } => Task::Histogram { value, filter },
            Action::Store { stores, filter } => Task::Store { stores: stores.to_vec(), filter },
        };
        let needs_index = compute.needs_index();
        let of_index = |number: u64| if needs_index { number } else { 1 };
        let made = Self {
            ops,
            types: program.types().to_vec(),
            needed,
            literals,
            task,
            page_len: of_index(compute.geometry.page_len),
            channels: of_index(compute.geometry.channels),
        };
        (made, values)
    }

    /// Returns the type of a value of the program.
    #[must_use]
    pub fn of(&self, value: Value) -> Type {
        self.types[value.at()]
    }

    /// Returns the distinct functions that the program calls, in the order of their first calls.
    #[must_use]
    pub fn functions(&self) -> Vec<&ScalarFunction> {
        let mut functions: Vec<&ScalarFunction> = Vec::new();
        for op in &self.ops {
            if let Op::Call { function, .. } = op
                && !functions.contains(&function)
            {
                functions.push(function);
            }
        }
        functions
    }
}

/// Maximum number of compiled programs in a cache.
const PROGRAMS_MAX: usize = 256;

/// A cache of the most recently used compiled programs `P`. A key `K` can be a [`Specialization`].
#[derive(Debug)]
#[doc(hidden)]
pub struct ProgramCache<K, P>(Mutex<Entries<K, P>>);

#[derive(Debug)]
struct Entries<K, P> {
    programs: HashMap<K, (u64, Arc<P>)>,
    /// Counts the look-ups. The cache finds the least recently used program by this count.
    clock: u64,
}

impl<K, P> Default for ProgramCache<K, P> {
    fn default() -> Self {
        Self(Mutex::new(Entries { programs: HashMap::new(), clock: 0 }))
    }
}

impl<K: Clone + Eq + Hash, P> ProgramCache<K, P> {
    /// Returns the program for `key`, if it is in the cache.
    pub fn find(&self, key: &K) -> Option<Arc<P>> {
        let mut entries = self.0.lock();
        entries.clock += 1;
        let clock = entries.clock;
        let (used, found) = entries.programs.get_mut(key)?;
        *used = clock;
        Some(Arc::clone(found))
    }

    /// Adds the program `made`, unless another thread has added one for `key`. Returns the program to use. If
    /// the cache is full, also removes and returns the least recently used one; programs in use stay valid.
    pub fn add(&self, key: K, made: P) -> (Arc<P>, Option<Arc<P>>) {
        let mut entries = self.0.lock();
        let Entries { programs, clock } = &mut *entries;
        *clock += 1;
        // If another thread has added a program with this key in the meantime, keep the other program,
        // because its kernels may run already.
        let (used, kept) = programs.entry(key).or_insert_with(|| (0, Arc::new(made)));
        *used = *clock;
        let kept = Arc::clone(kept);
        if programs.len() <= PROGRAMS_MAX {
            return (kept, None);
        }
        let idle = programs.iter().filter(|(_, (_, program))| Arc::strong_count(program) == 1);
        let oldest = idle.min_by_key(|(_, (used, _))| *used).map(|(key, _)| key.clone());
        let forgotten = oldest.and_then(|key| programs.remove(&key)).map(|(_, program)| program);
        (kept, forgotten)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_translation_is_kept_and_the_oldest_unused_program_goes() {
        let cache = ProgramCache::default();
        let (first, _) = cache.add(0, "first");
        assert_eq!(*cache.add(0, "second").0, "first");
        drop(first);
        let used = cache.add(1, "used").0;
        for key in 2..PROGRAMS_MAX {
            assert!(cache.add(key, "other").1.is_none());
        }
        assert_eq!(cache.find(&0).as_deref(), Some(&"first"));
        assert_eq!(cache.add(PROGRAMS_MAX, "one more").1.as_deref(), Some(&"other"));
        assert!(cache.find(&2).is_none() && cache.find(&0).is_some());
        drop(used);
        assert_eq!(cache.add(PROGRAMS_MAX + 1, "one more").1.as_deref(), Some(&"used"));
    }
}
