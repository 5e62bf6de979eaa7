//! What the jobs need of an array of 32-bit words, so that their logic is tested on a plain `Vec` too.

use anyhow::Result;
use vmarray::Items;

/// Many threads read and write ranges of words, and look for words of one value. Rows can be made of them.
pub trait Words: Items + Sync {
    /// Number of words.
    fn len(&self) -> u64;
    /// Reads the words from `start` on.
    fn read(&self, start: u64, words: &mut [u32]) -> Result<()>;
    /// Reads one word without bringing its page into the cache.
    fn read_uncached(&self, index: u64) -> Result<u32>;
    /// Writes the words from `start` on.
    fn write(&self, start: u64, words: &[u32]) -> Result<()>;
    /// The indices of all words that equal `value`, rising.
    fn find(&self, value: u32) -> Result<Vec<u64>>;
    /// Moves every written word to where it is kept for good.
    fn flush(&self) -> Result<()>;
    /// What has been done since the last call, or since the array was made.
    fn take_traffic(&self) -> Traffic;
    /// The array in words: devices, pages, cache.
    fn describe(&self) -> String;
}

/// Counts of accesses and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Accesses to pages that were in the cache.
    pub hits: u64,
    /// Accesses to pages that were not.
    pub misses: u64,
    /// Bytes copied to the devices.
    pub to_devices: u64,
    /// Bytes copied from the devices.
    pub from_devices: u64,
}

/// Words in RAM, for tests.
#[cfg(test)]
pub struct InRam(std::sync::RwLock<Vec<u32>>);

#[cfg(test)]
impl InRam {
    pub fn new(len: u64) -> Self {
        Self(std::sync::RwLock::new(vec![0; len as usize]))
    }
}

#[cfg(test)]
impl Items for InRam {
    fn item_count(&self) -> usize {
        self.0.read().unwrap().len()
    }
}

#[cfg(test)]
impl Words for InRam {
    fn len(&self) -> u64 {
        self.0.read().unwrap().len() as u64
    }

    fn read(&self, start: u64, words: &mut [u32]) -> Result<()> {
        let start = start as usize;
        words.copy_from_slice(&self.0.read().unwrap()[start..start + words.len()]);
        Ok(())
    }

    fn read_uncached(&self, index: u64) -> Result<u32> {
        Ok(self.0.read().unwrap()[index as usize])
    }

    fn write(&self, start: u64, words: &[u32]) -> Result<()> {
        let start = start as usize;
        self.0.write().unwrap()[start..start + words.len()].copy_from_slice(words);
        Ok(())
    }

    fn find(&self, value: u32) -> Result<Vec<u64>> {
        let words = self.0.read().unwrap();
        Ok((0..).zip(words.iter()).filter(|(_, word)| **word == value).map(|(index, _)| index).collect())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn take_traffic(&self) -> Traffic {
        Traffic::default()
    }

    fn describe(&self) -> String {
        "a vector".to_string()
    }
}
