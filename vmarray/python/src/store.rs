//! Creates arrays of each element type, in the memory that Python's options select (devices, files or RAM).

use std::any::Any;
use std::ops::Range;
use std::path::PathBuf;

use vmarray::access::{ExportedSlice, Registered};
use vmarray::bytemuck;
use vmarray::compute::AnyColumn;
use vmarray::device::expr::Type;
use vmarray::device::{Device as _, DeviceKind};
use vmarray::expr::{Assignment, Expr, Filtered, IntoFiltered, Number, Scalar};
use vmarray::rows::RowTableBuilder;
use vmarray::store::{FileAccess, FileSection};
use vmarray::{Element, Footprint, VirtualArray, prelude::*};

use crate::element::Unit;
use crate::elements::{Asked, Bins, Code, Elements, Multiplied, Ordered, Reduced};
use crate::home::Home;
use crate::with_unit;

/// Element types, with two optional abilities: an order, which sorts and searches need, and matrix products.
pub trait MaybeOrdered: Element {
    fn ordered(_: &Typed<Self>) -> Option<&dyn Ordered> {
        None
    }

    fn multiplied(_: &Typed<Self>) -> Option<&dyn Multiplied> {
        None
    }
}

macro_rules! ordered {
    ($($T:ty)*) => { $(
        impl MaybeOrdered for $T {
            fn ordered(of: &Typed<Self>) -> Option<&dyn Ordered> {
                Some(of)
            }

            fn multiplied(of: &Typed<Self>) -> Option<&dyn Multiplied> {
                Some(of)
            }
        }
    )* };
}

macro_rules! multiplied {
    ($($T:ty)*) => { $(
        impl MaybeOrdered for $T {
            fn multiplied(of: &Typed<Self>) -> Option<&dyn Multiplied> {
                Some(of)
            }
        }
    )* };
}
ordered!(u8 u16 u32 u64 i8 i16 i32 i64 f32 f64);
multiplied!(vmarray::half::f16 vmarray::num_complex::Complex<f32> vmarray::num_complex::Complex<f64>);
impl<const N: usize> MaybeOrdered for [u8; N] where [u8; N]: Element {}

/// Wrapper that implements [`Elements`] for a `VirtualArray` of elements `T`.
pub struct Typed<T: Element> {
    pub array: VirtualArray<T>,
}

impl<T: MaybeOrdered> Typed<T> {
    /// Returns a `VirtualArray` of elements `T` as a trait object for [`Elements`].
    pub fn boxed(array: VirtualArray<T>) -> Box<dyn Elements> {
        Box::new(Self { array })
    }

    /// Calls a function with bytes as a slice of elements; copies the bytes if they are not aligned.
    fn of_bytes<R>(bytes: &[u8], work: impl FnOnce(&[T]) -> R) -> R {
        match bytemuck::try_cast_slice(bytes) {
            Ok(elements) => work(elements),
            Err(_) => work(&bytemuck::pod_collect_to_vec::<u8, T>(bytes)),
        }
    }

    /// Calls a function with bytes as a mutable slice of elements, like [`of_bytes`](Self::of_bytes).
    fn of_bytes_mut(
        bytes: &mut [u8],
        work: impl FnOnce(&mut [T]) -> vmarray::Result<()>,
    ) -> vmarray::Result<()> {
        if let Ok(elements) = bytemuck::try_cast_slice_mut(bytes) {
            return work(elements);
        }
        let mut elements = bytemuck::pod_collect_to_vec::<u8, T>(bytes);
        work(&mut elements)?;
        bytes.copy_from_slice(bytemuck::cast_slice(&elements));
        Ok(())
    }
}

impl<T: MaybeOrdered> Elements for Typed<T> {
    fn len(&self) -> usize {
        self.array.len()
    }

    fn read(&self, start: usize, into: &mut [u8]) -> vmarray::Result<()> {
        if into.len() == size_of::<T>() {
            into.copy_from_slice(bytemuck::bytes_of(&self.array.get(start)?));
            return Ok(());
        }
        Self::of_bytes_mut(into, |into| (&self.array).read(start, into))
    }

    fn write(&self, start: usize, from: &[u8]) -> vmarray::Result<()> {
        Self::of_bytes(from, |from| (&self.array).write(start, from))
    }

    fn gather(&self, list: &[usize], into: &mut [u8]) -> vmarray::Result<()> {
        Self::of_bytes_mut(into, |into| (&self.array).gather_into(list, into))
    }

    fn scatter(&self, list: &[usize], from: &[u8]) -> vmarray::Result<()> {
        Self::of_bytes(from, |from| (&self.array).scatter(list, from))
    }

    fn read_rows(&self, starts: &[usize], row_bytes: usize, into: &mut [u8]) -> vmarray::Result<()> {
        let row_len = row_bytes / size_of::<T>();
        Self::of_bytes_mut(into, |into| self.array.gather_rows(starts, row_len, into))
    }

    fn fill(&self, range: Range<usize>, value: &[u8]) -> vmarray::Result<()> {
        (&self.array).fill(range, bytemuck::pod_read_unaligned(value))
    }

    fn push(&self, from: &[u8]) -> vmarray::Result<()> {
        Self::of_bytes(from, |from| {
            self.array.reserve(from.len())?;
            from.iter().try_for_each(|value| self.array.push(*value).map(|_| ()))
        })
    }

    fn copy_from(&self, start: usize, from: &dyn Elements, range: Range<usize>) -> vmarray::Result<bool> {
        if let Some(items) = from.items() {
            let write = |at: usize, block: &[u8]| self.write(start + at, block);
            return items.each_block(size_of::<T>(), range, write).map(|()| true);
        }
        let Some(from) = from.as_any().downcast_ref::<Self>() else { return Ok(false) };
        (&self.array).copy_from(start, from.array.section(range)?).map(|()| true)
    }

    fn column(&self, range: Range<usize>) -> vmarray::Result<AnyColumn<'_>> {
        Ok(AnyColumn::new(self.array.section(range)?))
    }

    fn change<'a>(
        &'a self,
        range: Range<usize>,
        others: &[AnyColumn<'a>],
        code: &Code,
        offset: usize,
    ) -> vmarray::Result<()> {
        let joined = self.array.section_mut(range)?.join(others)?;
        joined.transform(.., Assignment::from_program(&code.program, code.value, offset)?)
    }

    fn ask<'a>(
        &'a self,
        range: Range<usize>,
        others: &[AnyColumn<'a>],
        code: &Code,
        asked: Asked,
    ) -> vmarray::Result<Reduced> {
        let joined = &self.array.section(range)?.join(others)?;
        Ok(match asked {
            Asked::Count => Reduced::Int(joined.count_where(.., condition(code)?)? as i128),
            Asked::First | Asked::FirstNan => {
                Reduced::IntAt(joined.position_first(.., condition(code)?)?.map(|place| (place, 0)))
            }
            Asked::IntSum => Reduced::Int(joined.sum(.., filtered::<_, i64>(code)?)?),
            Asked::FloatSum => Reduced::Float(joined.sum(.., filtered::<_, f64>(code)?)?),
            Asked::IntExtreme { is_least } if code.program.type_of(code.value) == Some(Type::I64) => {
                Reduced::IntAt(extreme::<_, i64>(joined, code, is_least)?)
            }
            Asked::IntExtreme { is_least } => {
                Reduced::IntAt(extreme::<_, i32>(joined, code, is_least)?.map(widened))
            }
            Asked::FloatExtreme { is_least } if code.program.type_of(code.value) == Some(Type::F64) => {
                Reduced::FloatAt(extreme::<_, f64>(joined, code, is_least)?)
            }
            Asked::FloatExtreme { is_least } => {
                Reduced::FloatAt(extreme::<_, f32>(joined, code, is_least)?.map(widened))
            }
        })
    }

    fn find<'a>(
        &'a self,
        range: Range<usize>,
        others: &[AnyColumn<'a>],
        code: &Code,
        limit: usize,
    ) -> vmarray::Result<Vec<usize>> {
        let joined = &self.array.section(range)?.join(others)?;
        Ok(joined.find_where(.., condition(code)?, limit)?.indices)
    }

    fn histogram<'a>(
        &'a self,
        range: Range<usize>,
        others: &[AnyColumn<'a>],
        code: &Code,
        bins: Bins,
    ) -> vmarray::Result<Vec<u64>> {
        let joined = &self.array.section(range)?.join(others)?;
        let (bin, is_inside) = bins.of(Expr::from_program(&code.program, code.value)?);
        joined.histogram(.., bin.only_where(is_inside), bins.count)
    }

    fn multiplied(&self) -> Option<&dyn Multiplied> {
        T::multiplied(self)
    }

    fn ordered(&self) -> Option<&dyn Ordered> {
        T::ordered(self)
    }

    fn take(&self, range: Range<usize>, list: &dyn Elements) -> vmarray::Result<Option<Box<dyn Elements>>> {
        let Some(list) = list.as_any().downcast_ref::<Typed<u64>>() else { return Ok(None) };
        Ok(Some(Self::boxed(self.array.section(range)?.take(&list.array)?)))
    }

    fn shuffle(&self, range: Range<usize>, seed: u64) -> vmarray::Result<()> {
        (&self.array).shuffle(range, seed)
    }

    fn export(&mut self, range: Range<usize>) -> vmarray::Result<ExportedSlice> {
        let start = range.start;
        self.array.export(range)?.run(start)
    }

    fn rows(&mut self, range: Range<usize>, row_len: usize) -> vmarray::Result<RowTableBuilder<'_>> {
        self.array.rows(range, row_len)
    }

    fn register(&self, words: Vec<u64>) -> vmarray::Result<Registered<u64>> {
        self.array.register(words)
    }

    fn flush(&self) -> vmarray::Result<()> {
        (&self.array).flush(..)
    }

    fn sync(&self) -> vmarray::Result<()> {
        self.array.sync()
    }

    fn footprint(&self) -> vmarray::Result<Footprint> {
        Ok(self.array.footprint())
    }

    fn page_len(&self) -> usize {
        self.array.page_len()
    }

    fn max_len(&self) -> usize {
        self.array.max_len()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Converts the bool value of a program to a condition, and combines it with the program's filter.
fn condition<R>(code: &Code) -> vmarray::Result<Expr<R, bool>> {
    let value = Expr::from_program(&code.program, code.value)?;
    Ok(match code.filter {
        Some(filter) => value & Expr::from_program(&code.program, filter)?,
        None => value,
    })
}

fn filtered<R, F: Scalar + Number>(code: &Code) -> vmarray::Result<Filtered<R, F>> {
    let value = Expr::<R, F>::from_program(&code.program, code.value)?;
    Ok(match code.filter {
        Some(filter) => value.only_where(Expr::from_program(&code.program, filter)?),
        None => value.into_filtered(),
    })
}

/// Returns the first least or greatest value of a program, and its index.
fn extreme<'a, Q: Query<'a, Index = usize>, F: Scalar + Number>(
    of: Q,
    code: &Code,
    is_least: bool,
) -> vmarray::Result<Option<(usize, F)>> {
    let value = filtered::<Q::Row, F>(code)?;
    if is_least { of.arg_min(.., value) } else { of.arg_max(.., value) }
}

fn widened<F: Into<T>, T>((index, value): (usize, F)) -> (usize, T) {
    (index, value.into())
}

/// Location in which an array is stored.
pub enum Place {
    /// In device memory; the contents do not persist.
    Memory,
    /// In new files, with a text in their description.
    Create(Vec<PathBuf>, String),
    /// In existing files; true for read-only access.
    Open(Vec<PathBuf>, bool),
    /// In memory of Python, or by functions of Python.
    Home(Home),
    /// In a range of bytes of each of these files of other programs. Several files are read only.
    Files(Vec<(PathBuf, Range<u64>)>, FileAccess),
}

/// Options of a new array. Lengths count elements of the library.
#[derive(Clone, Default)]
pub struct Options {
    /// The devices of the array.
    pub devices: Vec<std::sync::Arc<vmarray::AnyDevice>>,
    pub cache_bytes: Option<usize>,
    pub page_bytes: Option<usize>,
    pub max_len: Option<usize>,
    pub checksums: bool,
}

impl Options {
    /// True if no option requests a property that arrays in RAM lack.
    pub fn are_usual(&self) -> bool {
        self.page_bytes.is_none() && self.max_len.is_none() && !self.checksums
    }

    /// True if all devices are RAM.
    pub fn are_in_ram(&self) -> bool {
        self.devices.iter().all(|device| device.info().kind == DeviceKind::HostMemory)
    }

    /// True if all devices are GPUs.
    pub fn are_cards(&self) -> bool {
        self.devices.iter().all(|device| device.info().kind != DeviceKind::HostMemory)
    }
}

/// Creates an array. Blocks during the allocation, or while files are read.
pub fn build(unit: Unit, len: usize, options: &Options, place: &Place) -> vmarray::Result<Box<dyn Elements>> {
    with_unit!(unit, T => {
        let mut builder = VirtualArray::<T>::builder(len).checksums(options.checksums);
        if let Some(bytes) = options.cache_bytes {
            builder = builder.cache_bytes(bytes);
        }
        if let Some(bytes) = options.page_bytes {
            builder = builder.page_len((bytes / size_of::<T>()).max(1));
        }
        if let Some(len) = options.max_len {
            builder = builder.max_len(len);
        }
        let array = match place {
            Place::Memory => builder.cache_on_demand().devices(options.devices.iter().cloned()).build()?,
            Place::Create(files, text) => builder.annotation(text).create(files)?,
            Place::Open(files, false) => builder.open(files)?,
            Place::Open(files, true) => builder.open_read_only(files)?,
            Place::Home(home) => builder.build_over(home.clone())?,
            Place::Files(files, access) => {
                let open = |(path, range): &(PathBuf, Range<u64>)| FileSection::open(path, range.clone(), *access);
                builder.build_over_file(match &files[..] {
                    [file] => open(file)?,
                    files => FileSection::join(files.iter().map(open).collect::<Result<Vec<_>, _>>()?)?,
                })?
            }
        };
        Ok(Typed::boxed(array))
    })
}
