//! The two jobs from start to end, whatever the array is.

use super::genome::Genome;
use super::mandelbrot::{self, Picture};
use super::motif::Motif;
use super::picture;
use super::report::{self, bytes, count, line, rate, timed};
use super::store::{self, LOOKUP_MAX, LOOKUP_MIN, Store};
use super::verify::{Answers, verify};
use super::words::Words;
use anyhow::{Context, Result};
use std::path::Path;
use std::sync::Arc;
use vmarray::AnyDevice;

/// How much smaller a cache is than its array.
pub const CACHE_SHARE: u64 = 16;
const WORD_BYTES: u64 = size_of::<u32>() as u64;

/// What the genome store is asked to do.
pub struct StoreJob<'a> {
    /// A FASTA file, plain or gzip.
    pub fasta: &'a Path,
    /// The store is filled with strains up to this size; one is stored in any case.
    pub bytes_max: u64,
    /// Random subsequences that are looked up.
    pub lookups: u64,
    /// What is searched.
    pub motif: &'a Motif,
    /// Threads that use the array.
    pub threads: usize,
    /// Where to keep where records begin.
    pub devices: &'a [Arc<AnyDevice>],
}

/// Makes an array of so many words with a cache of so many bytes.
pub type Build<'a, W> = &'a dyn Fn(u64, u64) -> Result<W>;

/// Fills a genome store, reads and searches it, and verifies all answers against the file.
pub fn genome_store<W: Words>(job: &StoreJob, build: Build<W>) -> Result<()> {
    let StoreJob { fasta, bytes_max, lookups, motif, threads, devices } = *job;
    println!("1. Genome store");
    let (genome, _) = timed("reading", 0, |bar| Genome::index(fasta, |bases| bar.inc(bases)))?;
    let file = fasta.file_name().unwrap_or(fasta.as_os_str()).to_string_lossy();
    let records = report::plural(genome.records.len() as u64, "record");
    line("file", format!("{file}: {records}, {} bases; {}", count(genome.bases), genome.name));

    let strains = (bytes_max / (genome.words * WORD_BYTES)).max(1);
    let len = genome.words.checked_mul(strains).context("the store is too large to be counted")?;
    let size = len * WORD_BYTES;
    let others = report::plural(strains - 1, "strain");
    line(
        "store",
        format!("{}: the genome and {others} of it, 4 bits a base (all letters of IUPAC)", bytes(size)),
    );
    let words = build(len, size / CACHE_SHARE)?;
    line("array", words.describe());
    let rows = store::rows(words, &genome, strains, devices)?;
    let (words, count_of_rows) = (rows.items(), count(rows.row_count() as u64));
    line("rows", format!("{count_of_rows}, {} of offsets", bytes(rows.offsets().len() as u64 * 8)));
    let store = Store { rows: &rows, genome: &genome, strains, threads };

    let ((), time) = timed("load", len, |bar| {
        store.load(fasta, bar)?;
        words.flush()
    })?;
    line("load", format!("{}; {}", rate(size, time, "B"), report::traffic(&words.take_traffic())));

    let hot_len = (len / CACHE_SHARE / 2).max(1);
    let hot = (len - hot_len) / 2..(len - hot_len) / 2 + hot_len;
    let (found, time) = timed("look-ups", lookups, |bar| store.look_up(lookups, &hot, 1, bar))?;
    let read: u64 = found.iter().map(|lookup| lookup.bases).sum();
    line(
        "look-ups",
        format!(
            "{} subsequences of {LOOKUP_MIN} to {LOOKUP_MAX} bases, 3 of 4 in a thirty-second of the store, {threads} threads",
            count(lookups)
        ),
    );
    let speed = format!("{}, {}", rate(lookups, time, ""), rate(read, time, "bases"));
    line("", format!("{speed}; {}", report::traffic(&words.take_traffic())));

    let (hashes, time) = timed("records", len, |bar| store.read_records(bar))?;
    let speed =
        format!("{} read whole, {}", report::plural(hashes.len() as u64, "record"), rate(size, time, "B"));
    line("records", format!("{speed}; {}", report::traffic(&words.take_traffic())));

    let searches = motif.placements().len() as u64;
    let ((hits, candidates), time) = timed("motif", searches, |bar| store.search(motif, bar))?;
    line(
        "motif",
        format!(
            "{motif}, both strands: {}, {} of them in the genome itself, from {} candidates",
            report::plural(hits.len() as u64, "hit"),
            hits.iter().filter(|hit| hit.strain == 0).count(),
            count(candidates)
        ),
    );
    let speed = format!("{searches} searches of the array, {}", rate(size * searches, time, "B"));
    line("", format!("{speed}; {}", report::traffic(&words.take_traffic())));

    // The array is no longer needed: what is verified is what was read from it.
    drop(rows);
    let (lookups, records, hits_len) = (found.len() as u64, hashes.len() as u64, hits.len() as u64);
    let answers = Answers { lookups: found, records: hashes, hits };
    let (_, time) =
        timed("verify", len * 8, |bar| verify(fasta, &genome, strains, motif, answers, threads, bar))?;
    line(
        "verified",
        format!(
            "{}, {} and {} are those of the file ({:.1} s)",
            report::plural(lookups, "look-up"),
            report::plural(records, "record"),
            report::plural(hits_len, "hit"),
            time.as_secs_f64()
        ),
    );
    Ok(())
}

/// Computes a Mandelbrot picture through an array, writes it as PNG and verifies every pixel of both.
pub fn mandelbrot<W: Words>(side: u32, png: &Path, threads: usize, build: Build<W>) -> Result<()> {
    let picture = Picture::whole(side);
    let size = picture.pixels() * WORD_BYTES;
    println!("2. Mandelbrot set");
    line(
        "picture",
        format!("{side} by {side} pixels, {}, up to {} steps a pixel", bytes(size), mandelbrot::STEPS_MAX),
    );
    let words = build(picture.pixels(), size / CACHE_SHARE)?;
    line("array", words.describe());
    let (_, time) =
        timed("compute", picture.tiles(), |bar| picture::compute(&picture, &words, threads, bar))?;
    let speed = format!("{} threads, {}", threads, rate(picture.pixels(), time, "pixels"));
    line("compute", format!("{speed}; {}", report::traffic(&words.take_traffic())));
    let (_, time) = timed("write", u64::from(side), |bar| picture::write_png(&picture, &words, png, bar))?;
    let here = std::env::current_dir().unwrap_or_default();
    let speed = format!("{} in {:.1} s", png.strip_prefix(here).unwrap_or(png).display(), time.as_secs_f64());
    line("write", format!("{speed}; {}", report::traffic(&words.take_traffic())));
    let (_, time) =
        timed("verify", u64::from(side), |bar| picture::verify(&picture, &words, png, threads, bar))?;
    let pixels = count(picture.pixels());
    line("verified", format!("{pixels} pixels of the array and of the file ({:.1} s)", time.as_secs_f64()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::array::choose;
    use crate::demo::genome::tests::TestFile;
    use crate::demo::words::InRam;

    #[test]
    fn both_jobs_run_on_any_array() {
        let genome = format!(">one\n{}\n>two\n{}\n", "ACGTTGCAAC".repeat(500), "GATTACA".repeat(90));
        let file = TestFile::new("job", genome.as_bytes());
        let motif = Motif::new("GATTACAGATTACAGATT").unwrap();
        let devices = choose(Some("host")).unwrap();
        let job = StoreJob {
            fasta: &file.0,
            bytes_max: 20_000,
            lookups: 500,
            motif: &motif,
            threads: 2,
            devices: &devices,
        };
        genome_store(&job, &|len, cache| {
            assert_eq!(cache, len * 4 / CACHE_SHARE);
            Ok(InRam::new(len))
        })
        .unwrap();
        let png = TestFile::new("job.png", b"");
        mandelbrot(70, &png.0, 2, &|len, _| Ok(InRam::new(len))).unwrap();
    }

    #[test]
    fn an_array_that_forgets_writes_is_caught() {
        /// Loses every write beyond its first words.
        struct Forgetful(InRam);

        impl vmarray::Items for Forgetful {
            fn item_count(&self) -> usize {
                self.0.item_count()
            }
        }

        impl Words for Forgetful {
            fn len(&self) -> u64 {
                self.0.len()
            }
            fn read(&self, start: u64, words: &mut [u32]) -> Result<()> {
                self.0.read(start, words)
            }
            fn read_uncached(&self, index: u64) -> Result<u32> {
                self.0.read_uncached(index)
            }
            fn write(&self, start: u64, words: &[u32]) -> Result<()> {
                if start < 100 { self.0.write(start, words) } else { Ok(()) }
            }
            fn find(&self, value: u32) -> Result<Vec<u64>> {
                self.0.find(value)
            }
            fn flush(&self) -> Result<()> {
                self.0.flush()
            }
            fn take_traffic(&self) -> crate::demo::words::Traffic {
                self.0.take_traffic()
            }
            fn describe(&self) -> String {
                self.0.describe()
            }
        }

        let file = TestFile::new("forgetful", format!(">one\n{}\n", "ACGTTGCAAC".repeat(500)).as_bytes());
        let motif = Motif::new("GATTACAGATTACAGATT").unwrap();
        let devices = choose(Some("host")).unwrap();
        let job = StoreJob {
            fasta: &file.0,
            bytes_max: 20_000,
            lookups: 500,
            motif: &motif,
            threads: 2,
            devices: &devices,
        };
        assert!(genome_store(&job, &|len, _| Ok(Forgetful(InRam::new(len)))).is_err());
        let png = TestFile::new("forgetful.png", b"");
        assert!(mandelbrot(70, &png.0, 2, &|len, _| Ok(Forgetful(InRam::new(len)))).is_err());
    }
}
