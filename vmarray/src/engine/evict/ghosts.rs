//! The keys of pages evicted lately, without the pages.

/// The last `capacity` keys pushed, each until it is taken. Constant time, no allocation after construction.
#[derive(Debug)]
pub(super) struct Ghosts {
    /// The keys in order of arrival; the oldest is overwritten.
    ring: Vec<u64>,
    /// Where in `ring` the next key goes.
    next: usize,
    /// A hash table with linear probing, at most half full: positions in `ring` plus one, or 0 where empty. A
    /// key that was taken is still in `ring` but not here.
    table: Vec<u32>,
}

impl Ghosts {
    pub(super) fn new(capacity: usize) -> Self {
        let capacity = capacity.max(1);
        Self { ring: vec![0; capacity], next: 0, table: vec![0; (2 * capacity).next_power_of_two()] }
    }

    /// Remembers the key, and forgets the one that is `capacity` pushes older.
    pub(super) fn push(&mut self, key: u64) {
        self.take(key);
        let at = self.next;
        self.next = if at + 1 == self.ring.len() { 0 } else { at + 1 };
        if let Ok(cell) = self.find(self.ring[at])
            && self.table[cell] == at as u32 + 1
        {
            self.clear(cell);
        }
        self.ring[at] = key;
        if let Err(cell) = self.find(key) {
            self.table[cell] = at as u32 + 1;
        }
    }

    /// Whether the key is remembered; it is forgotten now.
    pub(super) fn take(&mut self, key: u64) -> bool {
        let found = self.find(key);
        if let Ok(cell) = found {
            self.clear(cell);
        }
        found.is_ok()
    }

    /// The cell where the search for a key starts.
    fn home(&self, key: u64) -> usize {
        // Fibonacci hashing: 2^64 divided by the golden ratio; the upper half of the product is well mixed.
        (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize & (self.table.len() - 1)
    }

    /// The cell that holds the key, or else the empty one where it would go.
    fn find(&self, key: u64) -> Result<usize, usize> {
        let mut cell = self.home(key);
        // Ends: at least half of the cells are empty.
        loop {
            match self.table[cell] {
                0 => return Err(cell),
                entry if self.ring[entry as usize - 1] == key => return Ok(cell),
                _ => cell = (cell + 1) & (self.table.len() - 1),
            }
        }
    }

    /// Empties a cell, and moves later entries back so that no search stops short of them.
    fn clear(&mut self, mut hole: usize) {
        let mask = self.table.len() - 1;
        let mut cell = hole;
        loop {
            cell = (cell + 1) & mask;
            let entry = self.table[cell];
            if entry == 0 {
                break;
            }
            let home = self.home(self.ring[entry as usize - 1]);
            // The entry may move only if the hole lies on its way from home.
            if cell.wrapping_sub(home) & mask >= cell.wrapping_sub(hole) & mask {
                self.table[hole] = entry;
                hole = cell;
            }
        }
        self.table[hole] = 0;
    }
}
