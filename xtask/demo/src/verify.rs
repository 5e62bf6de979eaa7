//! Verifies all data that the demo reads from a genome store. Computes the strains (mutated copies) again
//! from the bases of the FASTA file, without an array, and searches for the motif base by base.

use crate::genome::Genome;
use crate::motif::Motif;
use crate::store::{Hash, Hit, Lookup};
use crate::strain;
use anyhow::{Result, bail, ensure};
use indicatif::ProgressBar;
use rayon::prelude::*;

/// The answers of all queries to a store.
#[derive(Clone)]
pub struct Answers {
    /// The subsequences that were looked up, in any order.
    pub lookups: Vec<Lookup>,
    /// The hash of each record that was read, strain by strain.
    pub records: Vec<Hash>,
    /// All hits of the motif, sorted.
    pub hits: Vec<Hit>,
}

/// Compares all answers with `genome` and its computed strains (mutated copies). The error names a wrong
/// answer. The progress bar counts the records of all strains.
pub fn verify(
    genome: &Genome,
    strains: usize,
    motif: &Motif,
    answers: &Answers,
    progress: &ProgressBar,
) -> Result<()> {
    let (found, wanted) = (answers.records.len(), strains * genome.records.len());
    ensure!(found == wanted, "{found} records were read, not {wanted}");
    answers.lookups.par_iter().try_for_each(|lookup| {
        let Lookup { strain, place, bases, hash } = *lookup;
        let codes = strain::codes(&genome.codes, strain, place..place + bases);
        ensure!(
            Hash::of(&codes) == hash,
            "strain {strain}: the {bases} bases read from base {place} on differ from the file"
        );
        Ok(())
    })?;
    let hits = answers.records.par_iter().enumerate().map(|(row, hash)| {
        let (strain, number) = (row / genome.records.len(), row % genome.records.len());
        let places = genome.records[number].clone();
        let (start, bases) = (places.start, places.len());
        let codes = strain::codes(&genome.codes, strain, places);
        ensure!(
            Hash::of(&codes) == *hash,
            "strain {strain}: record {} of {bases} bases differs from the file",
            number + 1
        );
        let hit = |(at, strand)| Hit { strain, place: start + at, strand };
        let hits: Vec<Hit> = motif.hits(&codes).map(hit).collect();
        progress.inc(1);
        Ok(hits)
    });
    compare_hits(&answers.hits, &hits.collect::<Result<Vec<_>>>()?.concat())
}

fn compare_hits(found: &[Hit], wanted: &[Hit]) -> Result<()> {
    if let Some(wrong) = found.iter().find(|hit| wanted.binary_search(hit).is_err()) {
        bail!(
            "the search found a motif that the file does not contain: strain {}, base {}",
            wrong.strain,
            wrong.place
        );
    }
    if let Some(missed) = wanted.iter().find(|hit| found.binary_search(hit).is_err()) {
        bail!("the search missed the motif in strain {}, base {}", missed.strain, missed.place);
    }
    ensure!(
        found.len() == wanted.len(),
        "the search found the motif {} times instead of {}",
        found.len(),
        wanted.len()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::choose;
    use crate::genome::tests::TestFile;
    use crate::store::{self, Store};
    use vmarray::VirtualArray;
    use vmarray::device::wrap::SplitMix64;
    use vmarray::prelude::*;

    const MOTIF: &str = "AGAGTTTGATCATGG";
    const BACKWARD: &str = "CCATGATCAAACTCT";
    const STRAINS: usize = 3;

    /// Records of many lengths, the motif planted on both strands, near ends and across words.
    fn text() -> Vec<u8> {
        let mut random = SplitMix64::new(7);
        let mut text = String::new();
        for (number, len) in [0, 1, 7, 8, 9, 5000, 17, 0, 3000, 15, 300_000].into_iter().enumerate() {
            text.push_str(&format!(">record {number}\n"));
            let mut bases: String =
                (0..len).map(|_| b"ACGTACGTACGTACGTACGTACGTACGTACGN"[random.index(32)] as char).collect();
            for (at, motif) in
                [(0, MOTIF), (1003, BACKWARD), (2001, MOTIF), (262_140, MOTIF), (299_985, BACKWARD)]
            {
                if at + 15 <= len {
                    bases.replace_range(at..at + 15, motif);
                }
            }
            // A motif that spans two records does not count.
            if len == 17 {
                bases.replace_range(9.., &MOTIF[..8]);
            }
            text = text + &bases + "\n";
        }
        text.into_bytes()
    }

    #[test]
    fn right_answers_pass_and_one_wrong_answer_or_base_is_detected() {
        let genome = Genome::read(&TestFile::new("verify", &text()).0, |_| ()).unwrap();
        let (devices, bar) = (choose(Some("host")).unwrap(), ProgressBar::hidden());
        let words = VirtualArray::builder(genome.words() * STRAINS).devices(devices.iter().cloned());
        let rows = store::rows(words.build().unwrap(), &genome, STRAINS, &devices).unwrap();
        let store = Store { rows: &rows, genome: &genome, strains: STRAINS };
        for strain in 0..STRAINS {
            rows.items().write(genome.words() * strain, &store::words_of(&genome, strain)).unwrap();
        }
        let motif = Motif::new(MOTIF).unwrap();
        let look_up = || store.look_up(3000, &(10..400), 1, &bar).unwrap();
        let ask = || Answers {
            lookups: look_up(),
            records: store.read_records(&bar).unwrap(),
            hits: store.search(&motif, &bar).unwrap().0,
        };
        let verify = |answers: &Answers| verify(&genome, STRAINS, &motif, answers, &bar);

        let right = ask();
        verify(&right).unwrap();
        assert_eq!((right.lookups.len(), right.records.len()), (3000, 11 * STRAINS));
        // Occurrences in the test data: three in the record of 5000 bases, three in that of 3000, one in that
        // of 15, five in the last.
        assert_eq!(right.hits.iter().filter(|hit| hit.strain == 0).count(), 12);
        let one_thread = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        assert_eq!(one_thread.install(look_up), right.lookups, "the same for any number of threads");

        let wrong: [&dyn Fn(&mut Answers); 9] = [
            &|answers| answers.lookups[77].hash = Hash::EMPTY,
            // Change all answers, because a single one may be at a place at which both strains are equal.
            &|answers| answers.lookups.iter_mut().for_each(|it| it.strain ^= 1),
            &|answers| answers.lookups[0].place += genome.words() * 8,
            &|answers| answers.records.swap(5, 8),
            &|answers| answers.records.truncate(11 * STRAINS - 1),
            &|answers| answers.hits.truncate(answers.hits.len() - 1),
            &|answers| answers.hits.push(answers.hits[11]),
            &|answers| answers.hits[0].strand ^= true,
            &|answers| answers.hits[0].place += 8,
        ];
        for (number, change) in wrong.into_iter().enumerate() {
            let mut answers = right.clone();
            change(&mut answers);
            assert!(verify(&answers).is_err(), "change {number}");
        }
        for word in [5, genome.words(), genome.words() * STRAINS - 1] {
            let flip = || rows.items().update(word, |found| found ^ 1).unwrap();
            flip();
            let error = verify(&ask()).unwrap_err().to_string();
            assert!(error.contains("strain"), "{error}");
            flip();
        }
    }
}
