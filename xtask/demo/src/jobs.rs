//! Runs the three jobs of the demo program: the genome store, the Mandelbrot image, and the filtered image.
//! The jobs use the threads of the current rayon pool.

use crate::filter;
use crate::genome::Genome;
use crate::image::{self, Image};
use crate::kept::KeptStore;
use crate::mandelbrot::{self, Picture};
use crate::motif::Motif;
use crate::report::{byte_rate, line, plural, rate, timed, traffic};
use crate::store::{self, LOOKUP_MAX, LOOKUP_MIN, Store};
use crate::verify::{Answers, verify};
use anyhow::{Context, Result};
use indicatif::{HumanBytes, HumanCount};
use std::path::Path;
use std::sync::Arc;
use vmarray::prelude::*;
use vmarray::{AnyDevice, VirtualArray, device::Device};

/// The ratio between the sizes of an array and its cache.
const CACHE_SHARE: usize = 16;
const WORD_BYTES: usize = size_of::<u32>();

/// Builds an array of words on the devices, with a cache far smaller than itself.
fn build(devices: &[Arc<AnyDevice>], len: usize) -> Result<VirtualArray<u32>> {
    let array = VirtualArray::<u32>::builder(len)
        .devices(devices.iter().cloned())
        .cache_bytes(len * WORD_BYTES / CACHE_SHARE)
        .build()?;
    let names: Vec<String> = devices.iter().map(|device| device.info().to_string()).collect();
    let page = HumanBytes((array.page_len() * WORD_BYTES) as u64);
    let channels = plural(array.stats().channels.len(), "channel");
    let footprint = array.footprint();
    let (cache, table) = (footprint.cache_max_bytes as u64, footprint.table_bytes as u64);
    let kind = if footprint.is_pinned { "page-locked" } else { "pageable" };
    line("array", format!("{}; {channels}, pages of {page}", names.join(" + ")));
    line("", format!("in RAM: cache {} ({kind}), page table {}", HumanBytes(cache), HumanBytes(table)));
    Ok(array)
}

/// The files from which the demo reads genomes.
pub struct Source<'a> {
    /// The FASTA file to add to the store, if any.
    pub fasta: Option<&'a Path>,
    /// The FASTA file for the first genome of a new store.
    pub default: &'a Path,
    /// The path of the genome store, which earlier runs may have created.
    pub kept: &'a Path,
}

impl Source<'_> {
    /// Opens the store of earlier runs, and this run's genome: from the given file, else the first in the
    /// store.
    fn open(&self) -> Result<(KeptStore, Genome)> {
        let is_new = !self.kept.exists();
        let (kept, time) = timed("opening", 0, |_| KeptStore::open(self.kept))?;
        let here = std::env::current_dir().unwrap_or_default();
        let path = self.kept.strip_prefix(here).unwrap_or(self.kept).display();
        let (genomes, rows) = (plural(kept.genomes.len(), "genome"), plural(kept.row_count(), "row"));
        let bytes = HumanBytes((kept.words() * WORD_BYTES) as u64);
        let time = time.as_secs_f64() * 1e3;
        line(
            "kept",
            match is_new {
                true => format!("{path}: a new file, which the next run opens"),
                false => {
                    format!("{path}: opened in {time:.1} ms: {genomes}, {rows}, {bytes} of earlier runs")
                }
            },
        );
        let fasta = match self.fasta {
            None if !kept.genomes.is_empty() => {
                let genome = kept.genome(0)?;
                line("genome", format!("from the store: {}", said_of(&genome)));
                return Ok((kept, genome));
            }
            fasta => fasta.unwrap_or(self.default),
        };
        let (genome, _) = timed("reading", 0, |bar| Genome::read(fasta, |bases| bar.inc(bases)))?;
        let file = fasta.file_name().unwrap_or(fasta.as_os_str()).to_string_lossy();
        line("file", format!("{file}: {}", said_of(&genome)));
        Ok((kept, genome))
    }
}

fn said_of(genome: &Genome) -> String {
    let (records, bases) = (plural(genome.records.len(), "record"), plural(genome.bases(), "base"));
    format!("{records}, {bases}; {}", genome.name)
}

/// Fills a genome store, in a file for later runs, with at most `bytes_max` bytes, but at least one strain
/// (mutated copy of the genome). Copies the store to an array on the devices. Reads `lookups` random
/// subsequences and all records, and searches for the motif. Compares all answers with the genome.
pub fn genome_store(
    source: &Source<'_>,
    bytes_max: usize,
    lookups: usize,
    motif: &Motif,
    devices: &[Arc<AnyDevice>],
) -> Result<()> {
    println!("1. Genome store");
    let (mut kept, genome) = source.open()?;
    let strains = (bytes_max / (genome.words() * WORD_BYTES)).max(1);
    let len = genome.words().checked_mul(strains).context("the size of the store overflows")?;
    let size = len * WORD_BYTES;
    let (bytes, others) = (HumanBytes(size as u64), plural(strains - 1, "strain"));
    line("store", format!("{bytes}: the genome and {others} of it, 4 bits a base (all letters of IUPAC)"));
    let number = match kept.find(&genome, strains)? {
        Some(number) => number,
        None => {
            let (added, time) = timed("adding", len, |bar| kept.add(&genome, strains, bar))?;
            kept = added;
            line("added", format!("to the kept store, and synced: {}", byte_rate(size, time)));
            kept.genomes.len() - 1
        }
    };
    let rows = store::rows(build(devices, len)?, &genome, strains, devices)?;
    let offsets = HumanBytes(rows.offsets().len() as u64 * 8);
    line("rows", format!("{} rows, {offsets} of offsets", HumanCount(rows.len() as u64)));
    let words = rows.items();
    let store = Store { rows: &rows, genome: &genome, strains };

    let ((), time) = timed("load", 0, |_| {
        kept.copy_to(number, words)?;
        Ok(words.flush(..)?)
    })?;
    drop(kept);
    line("load", format!("from the kept store: {}; {}", byte_rate(size, time), traffic(words)));

    let hot_len = (len / CACHE_SHARE / 2).max(1);
    let hot = (len - hot_len) / 2..(len - hot_len) / 2 + hot_len;
    let (found, time) = timed("look-ups", lookups, |bar| store.look_up(lookups, &hot, 1, bar))?;
    let read: usize = found.iter().map(|lookup| lookup.bases).sum();
    let (threads, count) = (rayon::current_num_threads(), plural(lookups, "subsequence"));
    let range = format!("{LOOKUP_MIN} to {LOOKUP_MAX} bases");
    let hot = "3 of 4 in one 32nd of the store";
    line("look-ups", format!("{count} of {range}, {hot}, {threads} threads"));
    let speed = format!("{}, {}", rate(lookups, "look-ups", time), rate(read, "bases", time));
    line("", format!("{speed}; {}", traffic(words)));

    let (hashes, time) = timed("records", len, |bar| store.read_records(bar))?;
    let records = plural(hashes.len(), "record");
    line("records", format!("{records} read whole, {}; {}", byte_rate(size, time), traffic(words)));

    let searches = motif.placements().len();
    let ((hits, candidates), time) = timed("motif", searches, |bar| store.search(motif, bar))?;
    let in_genome = hits.iter().filter(|hit| hit.strain == 0).count();
    let all = format!("{}, {in_genome} of them in the genome itself", plural(hits.len(), "hit"));
    line("motif", format!("{motif}: {all}; {} checked on both strands", plural(candidates, "candidate")));
    let speed = byte_rate(size * searches, time);
    line("", format!("{searches} searches of the array, {speed}; {}", traffic(words)));

    // Free the array, because the verification only uses data that was already read from it.
    drop(rows);
    let answers = Answers { lookups: found, records: hashes, hits };
    let (_, time) =
        timed("verify", answers.records.len(), |bar| verify(&genome, strains, motif, &answers, bar))?;
    let (lookups, hits) = (plural(answers.lookups.len(), "look-up"), plural(answers.hits.len(), "hit"));
    let seconds = time.as_secs_f64();
    line("verified", format!("{lookups}, {records} and {hits} match the genome ({seconds:.1} s)"));
    Ok(())
}

/// Computes a Mandelbrot image in an array, writes it to the file `png`, and verifies both, pixel by pixel.
pub fn mandelbrot(side: usize, png: &Path, devices: &[Arc<AnyDevice>]) -> Result<()> {
    println!("2. Mandelbrot set");
    let (pixels, steps) = (side * side, mandelbrot::STEPS_MAX);
    let size = HumanBytes((pixels * WORD_BYTES) as u64);
    line("picture", format!("{side} by {side} pixels, {size}, up to {steps} steps a pixel"));
    let words = build(devices, pixels)?;
    let picture = Picture { side, words: &words };
    let (_, time) = timed("compute", picture.tiles(), |bar| picture.compute(bar))?;
    let (threads, speed) = (rayon::current_num_threads(), rate(pixels, "pixels", time));
    line("compute", format!("{threads} threads, {speed}; {}", traffic(&words)));
    written(&picture, png, || traffic(&words))
}

/// Draws and filters an image by kernels on `devices`, writes it to the file `png`, and verifies it.
pub fn filtered(side: usize, png: &Path, devices: &[Arc<AnyDevice>]) -> Result<()> {
    println!("3. Filtered image");
    let build = || {
        let image = NdArray::<u8, 2>::builder([side, side]).tile([64, 256]).devices(devices.iter().cloned());
        image.elements(|elements| elements.cache_bytes(side * side / CACHE_SHARE)).build()
    };
    let (mut image, mut clean) = (build()?, build()?);
    let (size, width) = (HumanBytes((side * side) as u64), 2 * filter::RADIUS + 1);
    line("image", format!("{side} by {side} pixels, {size}, a twelfth of them specks"));
    let (_, time) = timed("draw", 0, |_| filter::draw_on(&mut image))?;
    line("draw", format!("{}; {}", rate(side * side, "pixels", time), traffic(image.elements())));
    let (_, time) = timed("filter", 0, |_| filter::clean_on(&image, &mut clean))?;
    let speed = rate(side * side, "pixels", time);
    line("filter", format!("medians of {width} by {width}: {speed}; {}", traffic(clean.elements())));
    written(&clean, png, || traffic(clean.elements()))
}

/// Writes an image as PNG, and verifies every pixel of its array and of the file.
fn written<I: Image>(image: &I, png: &Path, traffic: impl Fn() -> String) -> Result<()> {
    let side = image.side();
    let (_, time) = timed("write", side, |bar| image::write_png(image, png, bar))?;
    let here = std::env::current_dir().unwrap_or_default();
    let file = png.strip_prefix(here).unwrap_or(png).display();
    line("write", format!("{file} in {:.1} s; {}", time.as_secs_f64(), traffic()));
    let (_, time) = timed("verify", side, |bar| image::verify(image, png, bar))?;
    let pixels = plural(side * side, "pixel");
    line("verified", format!("{pixels} of the array and of the file ({:.1} s)", time.as_secs_f64()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::choose;
    use crate::genome::tests::TestFile;

    #[test]
    fn all_jobs_run() {
        let genome = format!(">one\n{}\n>two\n{}\n", "ACGTTGCAAC".repeat(500), "GATTACA".repeat(90));
        let file = TestFile::new("job", genome.as_bytes());
        let motif = Motif::new("GATTACAGATTACAGATT").unwrap();
        let devices = choose(Some("host")).unwrap();
        let other = TestFile::new("job-other", format!(">three\n{}\n", "TTGACA".repeat(300)).as_bytes());
        let kept = TestFile::new("job-kept", b"");
        std::fs::remove_file(&kept.0).unwrap();
        let run = |fasta: Option<&Path>| {
            let source = Source { fasta, default: &file.0, kept: &kept.0 };
            genome_store(&source, 20_000, 500, &motif, &devices).unwrap();
            KeptStore::open(&kept.0)
                .unwrap()
                .genomes
                .into_iter()
                .map(|genome| genome.name)
                .collect::<Vec<_>>()
        };
        // The program adds the other genome once. Without a file, it uses the first genome.
        assert_eq!(run(None), ["one"]);
        assert_eq!(run(None), ["one"]);
        assert_eq!(run(Some(&other.0)), ["one", "three"]);
        assert_eq!(run(Some(&other.0)), ["one", "three"]);
        std::fs::remove_file(&file.0).unwrap();
        assert_eq!(run(None), ["one", "three"]);
        let png = TestFile::new("job.png", b"");
        mandelbrot(70, &png.0, &devices).unwrap();
        filtered(70, &png.0, &devices).unwrap();
    }
}
