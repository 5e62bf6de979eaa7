//! 4-bit codes of the IUPAC nucleotide letters: one bit for each base that the letter may represent.
//!
//! A is 1, C 2, G 4, T 8; R (A or G) is 5, N (any base) is 15, a gap is 0. The encoder reads lower case (soft
//! masking) as upper case, U as T, and `.` as a gap, so decoding cannot restore these differences.

/// Code of a nucleotide letter: a number below 16.
pub type Code = u8;

/// The letter of each code, from 0 to 15.
const LETTERS: [u8; 16] = *b"-ACMGRSVTWYHKDBN";
/// The entry in the table of codes for a character that is no letter.
const NONE: u8 = 0xff;
const CODES: [u8; 256] = codes();

const fn codes() -> [u8; 256] {
    let mut codes = [NONE; 256];
    let mut code = 0;
    while code < 16 {
        let letter = LETTERS[code];
        codes[letter as usize] = code as u8;
        codes[letter.to_ascii_lowercase() as usize] = code as u8;
        code += 1;
    }
    codes[b'U' as usize] = 8;
    codes[b'u' as usize] = 8;
    codes[b'.' as usize] = 0;
    codes
}

/// Returns the code of a nucleotide letter; `None` for other characters.
#[inline]
pub fn code(letter: u8) -> Option<Code> {
    let code = CODES[letter as usize];
    (code != NONE).then_some(code)
}

/// The letter of a code, upper case.
#[inline]
pub fn letter(code: Code) -> u8 {
    LETTERS[(code & 15) as usize]
}

/// Returns the code of the base on the opposite strand: A and T are exchanged, and so are C and G.
#[inline]
pub fn complement(code: Code) -> Code {
    (code & 15).reverse_bits() >> 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_sets_of_bases_and_complements_pair_up() {
        for (letter, bases, opposite) in [
            (b'A', &b"A"[..], b'T'),
            (b'C', b"C", b'G'),
            (b'R', b"AG", b'Y'),
            (b'K', b"GT", b'M'),
            (b'S', b"CG", b'S'),
            (b'W', b"AT", b'W'),
            (b'B', b"CGT", b'V'),
            (b'D', b"AGT", b'H'),
            (b'N', b"ACGT", b'N'),
            (b'-', b"", b'-'),
        ] {
            let set = bases.iter().map(|base| code(*base).unwrap()).fold(0, |set, one| set | one);
            assert_eq!(code(letter), Some(set));
            assert_eq!(code(letter.to_ascii_lowercase()), Some(set));
            assert_eq!((letter, opposite), (self::letter(set), self::letter(complement(set))));
            assert_eq!(complement(complement(set)), set);
        }
        assert_eq!((code(b'U'), code(b'u'), code(b'.')), (code(b'T'), code(b'T'), code(b'-')));
        assert_eq!((0..=255).filter(|byte| code(*byte).is_some()).count(), 15 * 2 + 2 + 2);
    }
}
