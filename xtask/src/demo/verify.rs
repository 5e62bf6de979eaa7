//! Everything that was read from a store, against the file it came from.
//!
//! The file is streamed once more. Each piece of it is turned into every strain, base by base and without the
//! packing or the array, and compared with what the threads had read. Memory does not grow with the file.

use super::genome::Genome;
use super::letters::Code;
use super::motif::{Matcher, Motif};
use super::store::{Hash, Hit, LOOKUP_MAX, Lookup, PIECE, on_threads};
use super::strain;
use anyhow::{Result, bail};
use indicatif::ProgressBar;
use std::path::Path;
use std::sync::Mutex;

/// What was read from a store.
pub struct Answers {
    /// Subsequences, in any order.
    pub lookups: Vec<Lookup>,
    /// A hash for every record of every strain, strain by strain.
    pub records: Vec<Hash>,
    /// All hits of the motif, sorted.
    pub hits: Vec<Hit>,
}

/// How far one strain has been followed through the file.
struct Follower {
    record: usize,
    hash: Hash,
    matcher: Matcher,
    hits: Vec<Hit>,
}

/// Checks all answers; the error names the first one that is wrong. Progress counts places, over all strains.
pub fn verify(
    path: &Path,
    genome: &Genome,
    strains: u64,
    motif: &Motif,
    mut answers: Answers,
    threads: usize,
    progress: &ProgressBar,
) -> Result<()> {
    let record_count = genome.records.len();
    if answers.records.len() as u64 != strains * record_count as u64 {
        bail!("{} records were read, not {}", answers.records.len(), strains * record_count as u64);
    }
    answers.lookups.sort_unstable_by_key(|lookup| lookup.place + lookup.bases);
    let followers: Vec<Mutex<Follower>> = (0..strains)
        .map(|_| {
            Mutex::new(Follower { record: 0, hash: Hash::EMPTY, matcher: motif.matcher(), hits: Vec::new() })
        })
        .collect();
    // The places streamed last: the new piece, and before it as many as a lookup may reach back.
    let mut recent: Vec<Code> = Vec::new();
    let mut recent_start = 0;
    let mut checked = 0;
    genome.stream(path, PIECE, |place, codes| {
        let keep = recent.len().min(LOOKUP_MAX as usize);
        recent_start = place - keep as u64;
        recent.drain(..recent.len() - keep);
        recent.extend_from_slice(codes);

        let end = place + codes.len() as u64;
        let whole = answers.lookups[checked..].partition_point(|lookup| lookup.place + lookup.bases <= end);
        let now = &answers.lookups[checked..checked + whole];
        checked += whole;
        on_threads(threads, now.len() as u64, |numbers, _| {
            while let Some(number) = numbers.next() {
                check_lookup(&now[number as usize], recent_start, &recent)?;
            }
            Ok(())
        })?;
        on_threads(threads, strains, |numbers, _| {
            while let Some(number) = numbers.next() {
                let mut follower =
                    followers[number as usize].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                let expected = &answers.records[number as usize * record_count..][..record_count];
                follower.follow(genome, number, motif, place, codes, expected)?;
                progress.inc(codes.len() as u64);
            }
            Ok(())
        })?;
        Ok(())
    })?;
    if checked != answers.lookups.len() {
        bail!("{} lookups lie beyond the end of the file", answers.lookups.len() - checked);
    }
    let mut hits = Vec::new();
    for (number, follower) in (0..).zip(followers) {
        let mut follower = follower.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        let expected = &answers.records[number as usize * record_count..][..record_count];
        follower.end_records(genome, number, u64::MAX, expected)?;
        hits.append(&mut follower.hits);
    }
    compare_hits(&answers.hits, &hits)
}

fn check_lookup(lookup: &Lookup, recent_start: u64, recent: &[Code]) -> Result<()> {
    let Lookup { strain: number, place, bases, hash } = *lookup;
    let start = (place - recent_start) as usize;
    let mut codes = recent[start..start + bases as usize].to_vec();
    strain::change_codes(number, place, &mut codes);
    if Hash::EMPTY.and_codes(&codes) != hash {
        bail!("strain {number}: the {bases} bases read from place {place} are not those of the file");
    }
    Ok(())
}

impl Follower {
    /// Goes through the next places of a strain: record by record, motif by motif.
    fn follow(
        &mut self,
        genome: &Genome,
        number: u64,
        motif: &Motif,
        place: u64,
        codes: &[Code],
        expected: &[Hash],
    ) -> Result<()> {
        let mut codes = codes.to_vec();
        strain::change_codes(number, place, &mut codes);
        let end = place + codes.len() as u64;
        let mut at = place;
        while at < end {
            self.end_records(genome, number, at, expected)?;
            let Some(record) = genome.records.get(self.record) else { break };
            let record_end = record.start + record.bases;
            if at < record.start {
                at = record.start.min(end);
                continue;
            }
            let stop = record_end.min(end);
            let part = &codes[(at - place) as usize..(stop - place) as usize];
            // Records begin on whole words and pieces hold whole words, so only a record's last part is
            // uneven.
            self.hash = self.hash.and_codes(part);
            for (here, code) in (at..).zip(part) {
                if let Some(strand) = self.matcher.push(*code) {
                    self.hits.push(Hit { strain: number, place: here + 1 - motif.len() as u64, strand });
                }
            }
            at = stop;
        }
        Ok(())
    }

    /// Compares the records that end at or before a place.
    fn end_records(&mut self, genome: &Genome, number: u64, place: u64, expected: &[Hash]) -> Result<()> {
        while let Some(record) = genome.records.get(self.record)
            && record.start + record.bases <= place
        {
            if expected[self.record] != self.hash {
                bail!(
                    "strain {number}: record {} of {} bases is not the file's",
                    self.record + 1,
                    record.bases
                );
            }
            self.record += 1;
            self.hash = Hash::EMPTY;
            self.matcher.restart();
        }
        Ok(())
    }
}

fn compare_hits(found: &[Hit], wanted: &[Hit]) -> Result<()> {
    if let Some(wrong) = found.iter().find(|hit| wanted.binary_search(hit).is_err()) {
        bail!("the motif was found where it is not: strain {}, place {}", wrong.strain, wrong.place);
    }
    if let Some(missed) = wanted.iter().find(|hit| found.binary_search(hit).is_err()) {
        bail!("the motif was not found in strain {}, place {}", missed.strain, missed.place);
    }
    if found.len() != wanted.len() {
        bail!("the motif was found {} times, not {}", found.len(), wanted.len());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::genome::tests::TestFile;
    use crate::demo::store::Store;
    use crate::demo::words::{InRam, Words};
    use crate::random::Random;
    use vmarray::Ragged;

    const MOTIF: &str = "AGAGTTTGATCATGG";
    const BACKWARD: &str = "CCATGATCAAACTCT";
    const STRAINS: u64 = 3;

    /// Records of many lengths, the motif planted on both strands, near ends and across words.
    fn text() -> Vec<u8> {
        let mut random = Random::new(7);
        let mut text = String::new();
        for (number, len) in [0, 1, 7, 8, 9, 5000, 17, 0, 3000, 15, 300_000].into_iter().enumerate() {
            text.push_str(&format!(">record {number}\n"));
            let mut bases: String = (0..len)
                .map(|_| b"ACGTACGTACGTACGTACGTACGTACGTACGN"[random.below(32) as usize] as char)
                .collect();
            for (at, motif) in
                [(0, MOTIF), (1003, BACKWARD), (2001, MOTIF), (262_140, MOTIF), (299_985, BACKWARD)]
            {
                if at + 15 <= len {
                    bases.replace_range(at..at + 15, motif);
                }
            }
            // A motif across two records is none.
            if len == 17 {
                bases.replace_range(9.., &MOTIF[..8]);
            }
            for line in bases.as_bytes().chunks(61) {
                text.push_str(std::str::from_utf8(line).unwrap());
                text.push('\n');
            }
        }
        text.into_bytes()
    }

    struct Scene {
        file: TestFile,
        genome: Genome,
        rows: Ragged<InRam>,
        motif: Motif,
    }

    impl Scene {
        fn new(name: &str) -> Self {
            let file = TestFile::new(name, &text());
            let genome = Genome::index(&file.0, |_| ()).unwrap();
            let words = InRam::new(genome.words * STRAINS);
            let devices = crate::demo::array::choose(Some("host")).unwrap();
            let rows = crate::demo::store::rows(words, &genome, STRAINS, &devices).unwrap();
            let scene = Self { file, genome, rows, motif: Motif::new(MOTIF).unwrap() };
            scene.store().load(&scene.file.0, &ProgressBar::hidden()).unwrap();
            scene
        }

        fn store(&self) -> Store<'_, InRam> {
            Store { rows: &self.rows, genome: &self.genome, strains: STRAINS, threads: 3 }
        }

        fn answers(&self) -> Answers {
            let (store, bar) = (self.store(), ProgressBar::hidden());
            Answers {
                lookups: store.look_up(3000, &(10..400), 1, &bar).unwrap(),
                records: store.read_records(&bar).unwrap(),
                hits: store.search(&self.motif, &bar).unwrap().0,
            }
        }

        fn verify(&self, answers: Answers) -> Result<()> {
            verify(&self.file.0, &self.genome, STRAINS, &self.motif, answers, 3, &ProgressBar::hidden())
        }

        fn flip(&self, word: u64, mask: u32) {
            let mut words = [0];
            self.rows.items().read(word, &mut words).unwrap();
            self.rows.items().write(word, &[words[0] ^ mask]).unwrap();
        }
    }

    #[test]
    fn what_is_right_passes() {
        let scene = Scene::new("right");
        let answers = scene.answers();
        assert_eq!(answers.lookups.len(), 3000);
        assert_eq!(answers.records.len(), 11 * STRAINS as usize);
        // Planted: three in the record of 5000, three in that of 3000, one in that of 15, five in the last.
        assert_eq!(answers.hits.iter().filter(|hit| hit.strain == 0).count(), 12);
        scene.verify(answers).unwrap();
    }

    #[test]
    fn the_same_lookups_whatever_the_threads() {
        let scene = Scene::new("threads");
        let lookups = |threads| {
            let store = Store { threads, ..scene.store() };
            let mut found = store.look_up(1000, &(0..50), 9, &ProgressBar::hidden()).unwrap();
            found.sort_by_key(|lookup| (lookup.strain, lookup.place, lookup.bases));
            found
                .iter()
                .map(|lookup| (lookup.strain, lookup.place, lookup.bases, lookup.hash))
                .collect::<Vec<_>>()
        };
        assert_eq!(lookups(1), lookups(4));
    }

    #[test]
    fn one_wrong_base_in_the_store_is_seen() {
        let scene = Scene::new("store");
        for word in [5, scene.genome.words, scene.genome.words * STRAINS - 1] {
            scene.flip(word, 1);
            let error = scene.verify(scene.answers()).unwrap_err().to_string();
            assert!(error.contains("strain"), "{error}");
            scene.flip(word, 1);
        }
        scene.verify(scene.answers()).unwrap();
    }

    #[test]
    fn one_wrong_answer_is_seen() {
        let scene = Scene::new("answers");
        let changed = |change: &dyn Fn(&mut Answers)| {
            let mut answers = scene.answers();
            change(&mut answers);
            scene.verify(answers)
        };
        assert!(changed(&|_| ()).is_ok());
        assert!(changed(&|answers| answers.lookups[77].hash = Hash::EMPTY).is_err());
        // Any single one of them may lie where its strains are the same.
        assert!(changed(&|answers| answers.lookups.iter_mut().for_each(|it| it.strain ^= 1)).is_err());
        assert!(changed(&|answers| answers.lookups[0].place += scene.genome.words * 8).is_err());
        assert!(changed(&|answers| answers.records.swap(5, 8)).is_err());
        assert!(changed(&|answers| answers.records.truncate(11 * STRAINS as usize - 1)).is_err());
        assert!(changed(&|answers| answers.hits.truncate(answers.hits.len() - 1)).is_err());
        assert!(changed(&|answers| answers.hits.push(answers.hits[11])).is_err());
        assert!(changed(&|answers| answers.hits[0].strand ^= true).is_err());
    }
}
