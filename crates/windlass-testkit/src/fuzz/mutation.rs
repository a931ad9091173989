//! One new input from the known ones: bit flips, splices, truncation, numbers at limits, tokens.

use windlass_core::Random;

/// The longest input.
const BYTES_MAX: usize = 16 * 1024;
/// The most steps from a known input to a new one.
const STEPS_MAX: u64 = 6;

/// Bytes that parsers treat specially.
const BYTES: &[u8] = b"\0\t\n\r \"'#%&()*+,-./0189:;<=>?@AZ[\\]_az{|}~\x7f\x80\xc3\xed\xff";

/// Numbers at the limits of types and formats.
const NUMBERS: [&str; 14] = [
    "0",
    "00",
    "1",
    "-1",
    "0.1",
    "1e9",
    "1e308",
    "255",
    "65536",
    "4294967296",
    "9223372036854775808",
    "18446744073709551616",
    "340282366920938463463374607431768211456",
    "NaN",
];

/// Returns a mutation of one of the inputs.
pub(super) fn mutate(random: &mut Random, pool: &[Vec<u8>], tokens: &[Vec<u8>]) -> Vec<u8> {
    let mut input = pick(random, pool).clone();
    for _ in 0..=random.bits() % STEPS_MAX {
        step(random, &mut input, pool, tokens);
        input.truncate(BYTES_MAX);
    }
    input
}

fn step(random: &mut Random, input: &mut Vec<u8>, pool: &[Vec<u8>], tokens: &[Vec<u8>]) {
    let range = range(random, input.len());
    match random.bits() % 11 {
        0 => {
            if let Some(byte) = input.get_mut(range.start) {
                *byte ^= 1 << (random.bits() % 8);
            }
        }
        1 => {
            if let Some(byte) = input.get_mut(range.start) {
                *byte = *pick(random, BYTES);
            }
        }
        2 => input.insert(range.start, *pick(random, BYTES)),
        3 if !tokens.is_empty() => {
            input.splice(range.start..range.start, pick(random, tokens).clone());
        }
        4 if !tokens.is_empty() => {
            input.splice(range, pick(random, tokens).clone());
        }
        5 => drop(input.drain(range)),
        6 => {
            let copy = input[range.clone()].to_vec();
            input.splice(range.start..range.start, copy);
        }
        7 => {
            let other = pick(random, pool);
            let tail = place(random, other.len());
            input.truncate(range.start);
            input.extend_from_slice(&other[tail..]);
        }
        8 => input.truncate(range.start),
        9 => replace_number(random, input, range.start),
        _ => {
            let part = input[range.clone()].to_vec();
            let times = 1 + place(random, 200);
            input.splice(range.start..range.start, part.repeat(times));
        }
    }
}

/// Replaces the first number after a place.
fn replace_number(random: &mut Random, input: &mut Vec<u8>, from: usize) {
    let is_digit = |byte: &u8| byte.is_ascii_digit();
    let Some(start) = input[from..].iter().position(is_digit) else {
        return;
    };
    let start = from + start;
    let digits = input[start..].iter().take_while(|byte| is_digit(byte));
    let end = start + digits.count();
    let number = pick(random, &NUMBERS).bytes();
    input.splice(start..end, number);
}

/// A place in `0..=length`.
fn place(random: &mut Random, length: usize) -> usize {
    (random.bits() % (length as u64 + 1)) as usize
}

/// A range of an input: most are short.
fn range(random: &mut Random, length: usize) -> std::ops::Range<usize> {
    let start = place(random, length);
    let longest = if random.bits().is_multiple_of(4) {
        length - start
    } else {
        8.min(length - start)
    };
    start..start + place(random, longest)
}

fn pick<'a, T>(random: &mut Random, choices: &'a [T]) -> &'a T {
    &choices[(random.bits() % choices.len() as u64) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutations_reach_every_kind_of_change_and_stay_bounded() {
        let pool = [b"abc 12 def".to_vec(), b"XYZ".to_vec(), Vec::new()];
        let tokens = [b"token".to_vec()];
        let mut random = Random::new(1);
        let mutated: Vec<Vec<u8>> = (0..5000)
            .map(|_| mutate(&mut random, &pool, &tokens))
            .collect();
        let any = |is: &dyn Fn(&[u8]) -> bool| mutated.iter().any(|input| is(input));
        let contains = |input: &[u8], part: &[u8]| input.windows(part.len()).any(|at| at == part);
        assert!(any(&|input| contains(input, b"token")));
        let numbers = NUMBERS.map(|number| format!("abc {number} def"));
        let has_number = |input: &[u8]| numbers.iter().any(|number| input == number.as_bytes());
        assert!(any(&has_number));
        assert!(any(
            &|input| input.starts_with(b"abc ") && input.ends_with(b"YZ")
        ));
        assert!(any(&|input| contains(input, b"c c c c c ")));
        assert!(any(&|input| input == b"abc 12"));
        assert!(any(&|input| !input.is_ascii()));
        assert!(any(&|input| input.len() > 200));
        assert!(mutated.iter().all(|input| input.len() <= BYTES_MAX));
    }
}
