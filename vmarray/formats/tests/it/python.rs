//! Tests that exchange files with NumPy, zarr-python and xarray, in both directions.
//!
//! `cargo xtask formats` selects the Python and the number of files.

use std::fmt::Debug;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use vmarray::device::wrap::SplitMix64;
use vmarray::half::f16;
use vmarray::kernel::KernelType;
use vmarray::nd::NdLayout;
use vmarray::num_complex::Complex;
use vmarray::{Element, NdArray, prelude::*};
use vmarray_formats::npy::{self, NpyFile};
use vmarray_formats::zarr::{self, Blosc, Compression, Encoding, Zarr};
use vmarray_formats::{ByteOrder, FileOptions};

use crate::common::{Body, Folder, bytes, nd_array, rows, values};

/// Python as a process with requests in lines of JSON.
struct Peer {
    process: Child,
    asked: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    fn new(python: &str) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peer.py");
        let mut process = Command::new(python)
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python can be started");
        let (asked, answers) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        Self { process, asked, answers: BufReader::new(answers) }
    }

    fn ask(&mut self, what: &str, mut request: Value, case: &Case) {
        request["do"] = what.into();
        writeln!(self.asked, "{request}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        let answer: Value = serde_json::from_str(&answer).expect("Python answers");
        assert!(answer == "ok", "{case:?}\n{request}\n{}", answer.as_str().unwrap_or_default());
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Random properties of a file.
#[derive(Clone, Debug)]
struct Case {
    seed: u64,
    shape: [usize; 3],
    axes: usize,
    chunk: [usize; 3],
    /// Chunks of a shard along each axis.
    times: Option<[usize; 3]>,
    tile: Option<[usize; 3]>,
    is_big: bool,
    is_transposed: bool,
    compression: Compression,
    has_checksums: bool,
    shuffle: &'static str,
    separator: &'static str,
    version: u64,
    has_fill: bool,
}

impl Case {
    fn random(seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        let mut below = |bound: u64| random.below(bound);
        let three = |below: &mut dyn FnMut(u64) -> u64, least: u64, bound| {
            [0; 3].map(|_: usize| (least + below(bound)) as usize)
        };
        // Most types are tested with arrays of two axes.
        let axes = if matches!(seed % 13, 1 | 9 | 12) { 1 + below(3) as usize } else { 2 };
        let bound = [200, 20, 9][axes - 1];
        Self {
            seed,
            axes,
            shape: three(&mut below, u64::from(!seed.is_multiple_of(20)), bound),
            chunk: three(&mut below, 1, bound / 2),
            times: (below(2) == 0).then(|| three(&mut below, 1, 3)),
            tile: (below(2) == 0).then(|| three(&mut below, 1, 4)),
            is_big: below(2) == 0,
            is_transposed: below(3) == 0,
            compression: match below(8) {
                0 => Compression::None,
                1 | 2 => Compression::Zstd { level: 1 + below(9) as i32 },
                3 => Compression::Gzip { level: below(10) as u32 },
                by => Compression::Blosc {
                    by: [Blosc::BloscLz, Blosc::Lz4, Blosc::Lz4Hc, Blosc::Zlib, Blosc::Zstd][by as usize % 5],
                    level: below(10) as u8,
                },
            },
            shuffle: ["noshuffle", "shuffle", "bitshuffle"][below(3) as usize],
            separator: [".", "/"][below(2) as usize],
            version: below(4),
            has_fill: below(2) == 0,
            has_checksums: below(2) == 0,
        }
    }

    fn options<'a>(&self) -> FileOptions<'a> {
        let order = if self.is_big { ByteOrder::Big } else { ByteOrder::Little };
        FileOptions::new().byte_order(order).piece_bytes(1 + self.seed as usize % 999).threads(3)
    }

    /// The request to Python.
    fn request(&self, path: &Path, dtype: &Value, shape: &[usize]) -> Value {
        let (compressor, level) = match self.compression {
            Compression::None => ("none", 0),
            Compression::Zstd { level } => ("zstd", level as u32),
            Compression::Gzip { level } => ("gzip", level),
            Compression::Blosc { by, level } => {
                let name = match by {
                    Blosc::BloscLz => "blosclz",
                    Blosc::Lz4 => "lz4",
                    Blosc::Lz4Hc => "lz4hc",
                    Blosc::Zlib => "zlib",
                    Blosc::Zstd => "blosc zstd",
                };
                (name, u32::from(level))
            }
        };
        let shard = |times: [usize; 3]| -> Vec<usize> {
            (0..shape.len()).map(|axis| times[axis] * self.chunk[axis]).collect()
        };
        json!({
            "path": path, "raw": path.with_extension("raw"), "dtype": dtype, "shape": shape, "seed": self.seed,
            "order": if self.is_big { ">" } else { "<" }, "endian": if self.is_big { "big" } else { "little" },
            "first_fastest": self.is_transposed, "transposed": self.is_transposed, "version": self.version,
            "chunk": self.chunk[..shape.len()], "shard": self.times.map(shard), "compressor": compressor,
            "level": level, "shuffle": self.shuffle, "separator": self.separator, "fill": null,
            "checksums": self.has_checksums,
        })
    }
}

/// Files of one element type in an array with `N` axes, in both directions.
fn both_ways<T, const N: usize>(peer: &mut Peer, case: &Case, dtype: &Value, is_struct: bool)
where
    T: Element + KernelType + Debug,
{
    let folder = Folder::new();
    let first = |of: [usize; 3]| -> [usize; N] { std::array::from_fn(|axis| of[axis]) };
    let shape = first(case.shape);
    let layout = case.tile.map_or(NdLayout::RowMajor, |tile| NdLayout::Tiled(first(tile)));
    let array = || nd_array::<T, N>(shape, layout);
    let mut wanted = values::<T>(shape.iter().product(), case.seed);
    let fill = [wanted.first().copied().filter(|_| case.has_fill && !is_struct).unwrap_or(T::zeroed())];
    if case.has_fill {
        let len = wanted.len();
        wanted[len / 3..2 * len / 3].fill(fill[0]);
    }
    let from = array();
    from.write_box(.., &wanted).unwrap();
    let read = |path: &Path, read: &dyn Fn(&NdArray<T, N>)| {
        let to = array();
        read(&to);
        let raw = std::fs::read(path.with_extension("raw")).unwrap();
        assert!(bytes(&to.to_vec(..).unwrap()) == raw, "{case:?}: elements differ");
    };

    let path = folder.file("ours.npy");
    npy::write(&path, &from, case.options()).unwrap();
    std::fs::write(path.with_extension("raw"), bytes(&wanted)).unwrap();
    peer.ask("check_npy", case.request(&path, dtype, &shape), case);

    let path = folder.file("theirs.npy");
    peer.ask("write_npy", case.request(&path, dtype, &shape), case);
    read(&path, &|to| NpyFile::open(&path).unwrap().read(to, case.options()).unwrap());

    let mut encoding =
        Encoding::new().compression(case.compression).chunk(first(case.chunk)).fill_value(fill[0]);
    encoding = encoding.checksums(case.has_checksums);
    if let Some(times) = case.times {
        encoding = encoding.shard(std::array::from_fn::<_, N, _>(|axis| times[axis] * case.chunk[axis]));
    }
    let path = folder.file("ours.zarr");
    // One program writes the first part; then either program appends the rest.
    let begin = if case.seed.is_multiple_of(3) { shape[0] } else { shape[0] / 2 };
    let mut end = shape;
    end[0] = begin;
    zarr::write(&path, from.section(..end).unwrap(), encoding, case.options()).unwrap();
    std::fs::write(path.with_extension("raw"), bytes(&wanted)).unwrap();
    let mut request = case.request(&path, dtype, &shape);
    if case.seed % 3 == 1 || is_struct {
        let mut start = [0; N];
        start[0] = begin;
        let mut store = Zarr::open(&path).unwrap();
        store.append(from.section(start..).unwrap(), case.options()).unwrap();
    } else {
        peer.ask("append_zarr", request.clone(), case);
        read(&path, &|to| Zarr::open(&path).unwrap().read(to, case.options()).unwrap());
    }
    if !is_struct {
        request["fill"] = bytes(&fill).into();
    }
    peer.ask("check_zarr", request.clone(), case);
    if is_struct {
        request["fields"] = json!(["at", "mass"]);
        peer.ask("check_xarray", request, case);
    }

    let path = folder.file("theirs.zarr");
    let mut request = case.request(&path, dtype, &shape);
    if case.has_fill && !is_struct {
        request["fill"] = bytes(&fill).into();
    }
    peer.ask("write_zarr", request, case);
    read(&path, &|to| Zarr::open(&path).unwrap().read(to, case.options()).unwrap());

    if !is_struct {
        let path = folder.file("dataset.zarr");
        peer.ask("write_xarray", case.request(&path, dtype, &shape), case);
        read(&path, &|to| Zarr::open(path.join("data")).unwrap().read(to, case.options()).unwrap());
        rows_both_ways::<T>(peer, case, dtype);
    }
}

/// Rows of one element type, in both directions.
fn rows_both_ways<T: Element + KernelType + Debug>(peer: &mut Peer, case: &Case, dtype: &Value) {
    let folder = Folder::new();
    let mut random = SplitMix64::new(case.seed);
    let lists: Vec<Vec<T>> = (0..random.below(30)).map(|row| values(random.below(9) as usize, row)).collect();
    let items = lists.concat();
    let mut offsets = vec![0];
    offsets.extend(lists.iter().scan(0, |end, row| {
        *end += row.len();
        Some(*end)
    }));
    let path = folder.file("ours.zarr");
    let ours = rows::<T>().from_rows(&lists).unwrap();
    let encoding = Encoding::new().compression(case.compression).chunk([case.chunk[0]]);
    let encoding = encoding.checksums(case.has_checksums);
    zarr::write_ragged(&path, &ours, encoding, case.options()).unwrap();
    std::fs::write(path.with_extension("raw"), bytes(&items)).unwrap();
    let mut request = case.request(&path, dtype, &[items.len()]);
    request["offsets"] = json!(offsets);
    peer.ask("check_ragged", request.clone(), case);

    let path = folder.file("theirs.zarr");
    (request["path"], request["raw"]) = (json!(path), json!(path.with_extension("raw")));
    peer.ask("write_ragged", request, case);
    let theirs = zarr::read_ragged(&path, rows::<T>(), case.options()).unwrap();
    let raw = std::fs::read(path.with_extension("raw")).unwrap();
    assert!(bytes(&theirs.items().to_vec(..theirs.item_total()).unwrap()) == raw, "{case:?}");
    let lengths: Vec<usize> = theirs.rows().map(|row| row.unwrap().len()).collect();
    assert_eq!(lengths, lists.iter().map(Vec::len).collect::<Vec<_>>(), "{case:?}");
}

fn of_axes<T: Element + KernelType + Debug>(peer: &mut Peer, case: &Case, dtype: &Value, is_struct: bool) {
    match case.axes {
        1 => both_ways::<T, 1>(peer, case, dtype, is_struct),
        2 => both_ways::<T, 2>(peer, case, dtype, is_struct),
        _ => both_ways::<T, 3>(peer, case, dtype, is_struct),
    }
}

#[test]
#[ignore = "needs Python with NumPy, zarr and xarray: `cargo xtask formats`"]
fn python_libraries_and_vmarray_read_each_others_files() {
    let number = |name: &str| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let python = std::env::var("VMARRAY_FORMATS_PYTHON").expect("`cargo xtask formats` names a Python");
    let count = number("VMARRAY_FORMATS_COUNT").unwrap_or(10);
    let first = number("VMARRAY_FORMATS_SEED").unwrap_or(1);
    let mut peer = Peer::new(&python);
    let spin = json!([["of", "<i2", [2, 2]], ["id", "<u8", []]]);
    let body = json!([["at", "<f4", [3]], ["mass", "<f4", []], ["spin", spin, []]]);
    for seed in first..first + count {
        let (peer, case) = (&mut peer, &Case::random(seed));
        // Test most types with one number of axes, because this compiles faster.
        match seed % 13 {
            0 => both_ways::<u8, 2>(peer, case, &"|u1".into(), false),
            1 => of_axes::<u16>(peer, case, &"<u2".into(), false),
            2 => both_ways::<u32, 2>(peer, case, &"<u4".into(), false),
            3 => both_ways::<u64, 2>(peer, case, &"<u8".into(), false),
            4 => both_ways::<i8, 2>(peer, case, &"|i1".into(), false),
            5 => both_ways::<i16, 2>(peer, case, &"<i2".into(), false),
            6 => both_ways::<i32, 2>(peer, case, &"<i4".into(), false),
            7 => both_ways::<i64, 2>(peer, case, &"<i8".into(), false),
            8 => both_ways::<f16, 2>(peer, case, &"<f2".into(), false),
            9 => of_axes::<f32>(peer, case, &"<f4".into(), false),
            10 => both_ways::<Complex<f32>, 2>(peer, case, &"<c8".into(), false),
            11 => both_ways::<f64, 2>(peer, case, &"<f8".into(), false),
            _ => of_axes::<Body>(peer, case, &body, true),
        }
    }
}
